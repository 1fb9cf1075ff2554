"""Keeps the index of what was said, and searches it. An entry is indexed by the first search after it was stored."""

from __future__ import annotations

from typing import NamedTuple

import apsw

from agentcli.agent.interfaces import Found
from agentcli.infra.sessions.reading import ENTRIES, read_entry
from agentcli.infra.sessions.words import Words, folded, text_of

_BATCH = 2_000  # entries in a transaction: others wait for a moment only
_ROWS = 1 << 32  # for a session's entries
_ZERO = 1 << 31  # the row of `seq` 0 among them
_BEHIND = """
SELECT sessions.id, coalesce(indexed.seq, :nothing) FROM sessions LEFT JOIN indexed ON session_id = sessions.id
WHERE EXISTS (SELECT 1 FROM entries WHERE session_id = sessions.id AND seq > coalesce(indexed.seq, :nothing))
"""
_HITS = f"""
SELECT sessions.id, sessions.title, entries.seq
FROM (SELECT rowid / {_ROWS} AS number, rowid % {_ROWS} - {_ZERO} AS seq FROM words WHERE words MATCH :words) AS hits
JOIN indexed ON indexed.number = hits.number JOIN sessions ON sessions.id = indexed.session_id
JOIN entries ON entries.session_id = sessions.id AND entries.seq = hits.seq
WHERE cwd = coalesce(:cwd, cwd) AND user_id = coalesce(:user_id, user_id)
ORDER BY entries.time DESC, entries.seq DESC LIMIT :limit
"""  # noqa: S608 - numbers of this module


class Scope(NamedTuple):
    """Of which directory and user (None: of all), and how many at most."""

    cwd: str | None
    user_id: str | None
    limit: int


def add_some(db: apsw.Connection) -> bool:
    """Index entries that are not yet; True if there may be more of them."""
    room = _BATCH
    for session_id, seq in db.execute(_BEHIND, {"nothing": -_ZERO}).fetchall():
        rows = db.execute(
            ENTRIES.replace("SELECT", "SELECT seq,") + "WHERE session_id = ? AND seq > ? ORDER BY seq LIMIT ?",
            (session_id, seq, room),
        ).fetchall()
        number = db.execute(
            "INSERT INTO indexed (session_id, seq) VALUES (?, ?) "
            "ON CONFLICT (session_id) DO UPDATE SET seq = excluded.seq RETURNING number",
            (session_id, rows[-1][0]),
        ).get
        texts = ((number * _ROWS + _ZERO + seq, folded(text_of(read_entry(row).body))) for seq, *row in rows)
        db.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", (one for one in texts if one[1]))
        room -= len(rows)
        if not room:
            return True
    return False


def search(db: apsw.Connection, words: Words, scope: Scope) -> list[Found]:
    return [
        words.found_in(str(session_id), str(title), read_entry(row))
        for session_id, title, seq in db.execute(_HITS, {"words": words.for_index, **scope._asdict()}).fetchall()
        for row in db.execute(ENTRIES + "WHERE session_id = ? AND seq = ?", (session_id, seq))
    ]


def forget(db: apsw.Connection, session_id: str) -> None:
    """Take a session out of the index; the next search puts in what it has by then."""
    number = db.execute("DELETE FROM indexed WHERE session_id = ? RETURNING number", (session_id,)).get
    if number is not None:
        db.execute("DELETE FROM words WHERE rowid BETWEEN ? AND ?", (number * _ROWS, (number + 1) * _ROWS - 1))
