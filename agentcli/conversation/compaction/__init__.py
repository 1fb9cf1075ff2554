"""Compaction: when a conversation has to shrink, what stays of it, and how that is checked.

`planning` tries one way after another until the conversation fits, `stubs` shortens single entries, `digest` writes
older turns as text, `carried` collects what no strategy may lose, `summaries` has a model write about older turns.
"""
