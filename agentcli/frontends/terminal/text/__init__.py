"""Styled text: fragments with roles, their width, wrapping and colours, diffs, highlighted code.

Pure: text goes in, fragments or terminal codes come out. Nothing here knows sessions, keys or the screen.
"""
