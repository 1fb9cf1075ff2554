"""Keeps a conversation inside the model's window: decides when to compact it, and has summaries written.

`conversation/compaction` plans which parts are cut and which are carried over.
"""
