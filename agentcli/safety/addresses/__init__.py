"""Judges web addresses by their text: strict parsing, public and private networks, known documentation sites.

No name is resolved here; `tools/web` resolves it and has each address it leads to judged again.
"""
