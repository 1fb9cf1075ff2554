"""The library: `Agent`, and what only Python programs need."""
