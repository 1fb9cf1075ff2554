"""Slash commands that work in every front end, each a function and a line in its file's table.

A command sees its host and the session. One that only makes sense on a screen belongs to the terminal.
"""
