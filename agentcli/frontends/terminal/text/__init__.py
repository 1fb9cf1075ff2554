"""Lays out styled text: fragments with roles, their width, wrapping and colours, diffs, highlighted code."""
