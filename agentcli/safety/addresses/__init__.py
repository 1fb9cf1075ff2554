"""Judges web addresses by their text: strict parsing, public and private networks, known documentation sites.

Nothing here resolves a name: `tools/web` does, and has every address it leads to judged here.
"""
