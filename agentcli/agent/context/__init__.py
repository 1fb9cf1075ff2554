"""Keeps a conversation inside the model's window: when to compact it, and with what.

What is cut and carried over is planned in `conversation/compaction`; the only requests made here are for summaries.
"""
