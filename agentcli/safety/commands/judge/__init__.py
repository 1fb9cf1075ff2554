"""Walks through a command as the shell would run it and judges it: harmless, unknown, or a catastrophe.

`analysis.analyse` is the entry; it is imported for the first command, not at the start.
"""
