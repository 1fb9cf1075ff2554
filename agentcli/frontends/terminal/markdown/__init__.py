"""Markdown as styled text while it comes in; stream.py is the door.

What comes out depends on the text alone, not on where it was cut. Nothing here knows sessions, keys or the screen.
"""
