"""Reads shell commands as bash does: text to a syntax tree, and words to the fields they expand to.

It knows the language and no program: what a command means is judged in `programs` and `judge`.
"""
