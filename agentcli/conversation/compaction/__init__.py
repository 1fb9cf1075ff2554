"""Compaction: replaces the older part of a conversation by a digest.

`planning` fills the tokens that are free, from the newest turn to the oldest. `digest` writes older turns as text, at
several lengths, and collects what no compaction may lose; `excerpts` picks sentences where turns have no room.
"""
