"""Edits text: finding the place, applying, diffs, encodings, line endings. It needs no permissions or locks."""
