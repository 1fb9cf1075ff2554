"""Edits text: finding the place, applying, diffs, encodings, line ends.

Pure functions over text, and streams over large files; no permissions and no locks.
"""
