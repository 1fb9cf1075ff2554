"""Holds the bundled tools: `x.md` is the text of tool x for the model; `toolset` lists them and imports their bodies.

A body is imported at the first call of its tool, so `toolset` and `arguments` import none.
"""
