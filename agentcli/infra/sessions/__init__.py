"""Session stores, which give entries ids and order, and never look into a conversation's meaning."""
