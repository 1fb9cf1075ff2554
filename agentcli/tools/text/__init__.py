"""Edits text: finding the place, applying, diffs, encodings, line ends. It knows no permissions and no locks."""
