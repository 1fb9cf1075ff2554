"""Stores of event streams: in memory, in SQLite, in Redis."""
