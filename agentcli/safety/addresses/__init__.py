"""Judges web addresses by their text: strict parsing, public and private networks, known documentation sites."""
