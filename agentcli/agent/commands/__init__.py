"""Slash commands that work in every front end. Each is a function, and an entry in the table of its file."""
