"""Compaction: what stays of a conversation that has to shrink.

`planning` fills the room there is, from the newest turn to the oldest; `digest` writes older turns as text, at
several lengths; `carried` collects what no compaction may lose.
"""
