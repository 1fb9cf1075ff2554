"""The library: `Agent`, and the other parts that only Python programs use."""
