"""The session as it is shown; nothing here takes keys or submits operations."""
