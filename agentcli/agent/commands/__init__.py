"""Slash commands that work in every front end, each a function and a line in its file's table."""
