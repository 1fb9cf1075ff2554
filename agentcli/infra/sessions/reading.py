"""Reads sessions and their entries from the tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any
from zlib import crc32

import apsw

from agentcli.agent.interfaces import SessionInfo
from agentcli.conversation.entries import Entry, Unreadable, as_readable
from agentcli.conversation.titles import said_in_short
from agentcli.errors import AmbiguousSession, NoSession

MOST_LOOKED_AT = 20  # entries, for the newest prompt
# For `read_entry`; a body is read as bytes since it may be damaged.
_COLUMNS = "id, parent_id, time, schema_version, checksum, CAST(body AS BLOB)"
ENTRIES = f"SELECT {_COLUMNS} FROM entries "  # noqa: S608  # nothing of it is given


def full_id(db: apsw.Connection, session_id: str, user_id: str | None = None) -> str:
    """The one id that begins so, or the session of that name; with a `user_id` among those of that user alone."""
    session_id = session_id.encode(errors="replace").decode()  # an argument may be no text
    pattern = session_id.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    rows = db.execute(
        "SELECT id FROM sessions WHERE (id LIKE :pattern ESCAPE '\\' OR (name = :id AND name <> '')) "
        "AND user_id = coalesce(:user_id, user_id) ORDER BY id <> :id LIMIT 3",
        {"pattern": pattern, "id": session_id, "user_id": user_id},
    ).fetchall()
    return the_one(session_id, [str(id) for (id,) in rows])


def the_one(session_id: str, found: Sequence[str]) -> str:
    """The id among those that begin so, or are of sessions of that name. Raises `StorageError`."""
    if not found:
        raise NoSession(session_id)
    if len(found) > 1 and session_id not in found:
        if not any(id.startswith(session_id) for id in found):
            raise AmbiguousSession(
                f"Several sessions are named {session_id!r}: give the id of one (agentcli sessions list)."
            )
        raise AmbiguousSession(f"Several sessions begin with {session_id!r}: give more of the id.")
    return session_id if len(found) > 1 else found[0]


def notice_of_unreadable(session_id: str, entries: Sequence[Entry]) -> str:
    """For the person; empty if all can be read."""
    unreadable = [entry.body.error for entry in entries if isinstance(entry.body, Unreadable)]
    if not unreadable:
        return ""
    return (
        f"{len(unreadable)} of the {len(entries)} entries of session {session_id} are left out: {unreadable[0]}. "
        f"agentcli sessions show {session_id} shows where they stood."
    )


def lineage(db: apsw.Connection, session_id: str) -> list[tuple[str, int]]:
    """The sessions whose entries make this one, the oldest first, each with the `seq` of the last entry that counts."""
    parts: dict[str, int] = {}
    id, until = session_id, sys.maxsize
    while id and id not in parts:  # a damaged file may lead in a circle
        parts[id] = until
        source = "SELECT forked_from, forked_at FROM sessions WHERE id = ?"
        id, until = db.execute(source, (id,)).fetchone() or ("", 0)
    return list(parts.items())[::-1]


def entries_of(db: apsw.Connection, session_id: str, *, after: int = 0) -> list[Entry]:
    """The session's entries without the first `after`; those of the session it was forked from come first."""
    query = ENTRIES + "WHERE session_id = ? AND seq <= ? ORDER BY seq"
    rows = (row for part in lineage(db, session_id) for row in db.execute(query, part))
    return [read_entry(row) for row in islice(rows, after, None)]


def places_of(db: apsw.Connection, session_id: str) -> list[tuple[str, int, str]]:
    """Where the rows of `entries_of` are, in that order: session, `seq` and id of each."""
    query = "SELECT session_id, seq, id FROM entries WHERE session_id = ? AND seq <= ? ORDER BY seq"
    return [row for part in lineage(db, session_id) for row in db.execute(query, part)]


def read_entry(row: Sequence[Any]) -> Entry:
    """An entry from a row of `ENTRIES`; one that is damaged says so and keeps its text."""
    id, parent_id, time, version, checksum, body = row
    if checksum is not None and crc32(body) != checksum:
        damaged = Unreadable(
            f"entry {id} is damaged: its checksum is not that of its text", body.decode(errors="replace")
        )
        return Entry(id, parent_id, time, damaged)
    return as_readable({"id": id, "parent_id": parent_id, "time": time, "schema_version": version, "body": body})


def file_changes(db: apsw.Connection) -> list[tuple[str, Entry]]:
    """The entries of all sessions that tell of changes to files, oldest first, each with its session's id."""
    kinds = "kind IN ('files_changed', 'files_restored')"  # as the index has them
    rows = db.execute(f"SELECT session_id, {_COLUMNS} FROM entries WHERE {kinds} ORDER BY time")  # noqa: S608 - our names
    return [(str(session_id), read_entry(row)) for session_id, *row in rows]


def last_seq(db: apsw.Connection, session_id: str) -> int:
    return int(db.execute("SELECT coalesce(max(seq), 0) FROM entries WHERE session_id = ?", (session_id,)).get)


def info_of(db: apsw.Connection, id: str) -> SessionInfo:
    return infos(db, "WHERE id = ?", (id,))[0]


def infos(db: apsw.Connection, tail: str, values: tuple[Any, ...]) -> list[SessionInfo]:
    rows = db.execute(
        "SELECT id, cwd, title, created, updated, name, user_id, "  # noqa: S608 - the tail is one of this module's own
        "(SELECT count(*) FROM entries WHERE session_id = sessions.id) FROM sessions " + tail,
        values,
    )
    return [
        SessionInfo(id, cwd, title, created, updated, entries, name, _last_prompt(db, id), user_id)
        for id, cwd, title, created, updated, name, user_id, entries in list(rows)
    ]


def _last_prompt(db: apsw.Connection, session_id: str) -> str:
    """In a line; what agentcli told the model stands among what the person said."""
    rows = db.execute(
        ENTRIES + "WHERE session_id = ? AND kind = 'user' ORDER BY seq DESC LIMIT ?",
        (session_id, MOST_LOOKED_AT),
    )
    return next(filter(None, (said_in_short(read_entry(row).body) for row in rows)), "")
