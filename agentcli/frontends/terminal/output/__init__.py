"""Shows the session; nothing in this package handles keys or submits operations."""
