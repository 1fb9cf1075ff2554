"""Holds the bundled tools: `x.py` is the body of tool x, `x.md` its text for the model; `toolset` lists them.

A body is imported at the first call of its tool, so `toolset` and `arguments` import none.
"""
