"""Stores of event streams: in memory, in SQLite, in Redis."""

KEEP_S = 30 * 86_400.0  # a lasting stream that is not running goes so long after it was last written to
