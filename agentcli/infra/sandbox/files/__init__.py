"""Reads and writes files, resolves paths, and tells which files hold secrets."""
