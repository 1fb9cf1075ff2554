"""Session stores: SQLite on disk, and one in memory. Both pass the suite in tests/conformance.

They give entries ids and order, and never look into a conversation's meaning.
"""
