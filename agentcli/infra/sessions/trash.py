"""Moves sessions to the trash, a folder of JSON lines beside the database, and brings them back.

The first line of a file is its session, each other line an entry: all that the session showed, also what it shared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import msgspec

from agentcli.errors import StorageError
from agentcli.infra.sessions.files import write_synced
from agentcli.infra.sessions.index import forget
from agentcli.infra.sessions.log import INSERT_ENTRY
from agentcli.infra.sessions.reading import lineage

_SESSION = ("id", "cwd", "name", "title", "created", "updated", "used", "user_id")
_ENTRY = ("seq", "id", "parent_id", "time", "kind", "schema_version", "checksum", "body")


class _Header(msgspec.Struct, frozen=True):
    """A session; its first `shared` entries are also those of `forked_from` up to `forked_at`, while that is there."""

    session: dict[str, Any]
    forked_from: str | None
    forked_at: int | None
    shared: int


def remove(db: apsw.Connection, session_id: str, folder: Path) -> None:
    """Write the session to the trash, then delete it."""
    *inherited, own = (_rows(db, *part) for part in lineage(db, session_id))
    shared = [row for rows in inherited for row in rows]
    heir = _heir(db, session_id)
    first = own[0]["seq"] - len(shared) if own else 0
    lines = [{**row, "seq": first + n} for n, row in enumerate((*shared, *own))]
    query = f"SELECT forked_from, forked_at, {', '.join(_SESSION)} FROM sessions WHERE id = ?"  # noqa: S608 - our names
    row: tuple[Any, ...] = db.execute(query, (session_id,)).fetchall()[0]
    forked_from, forked_at, *values = row
    count = len(shared)
    if heir is not None:
        forked_from, forked_at, count = heir.id, heir.last_seq, count + sum(row["seq"] <= heir.until for row in own)
    header = _Header(dict(zip(_SESSION, values, strict=True)), forked_from, forked_at, count)
    write_synced(_new_file(folder, session_id), map(msgspec.json.encode, (header, *lines)))
    forget(db, session_id)
    if heir is not None:
        _hand_over(db, session_id, heir)
    db.execute("DELETE FROM entries WHERE session_id = ?", (session_id,))
    db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))


class _Heir(msgspec.Struct, frozen=True):
    """The fork that takes over a session's entries up to `until`; the last of them gets the number `last_seq`."""

    id: str
    until: int
    last_seq: int


def _heir(db: apsw.Connection, session_id: str) -> _Heir | None:
    """The fork that shares most; its first entry keeps its number, since it may be open and count on."""
    query = "SELECT id, forked_at FROM sessions WHERE forked_from = ? ORDER BY forked_at DESC LIMIT 1"
    for id, until in db.execute(query, (session_id,)):
        first = db.execute("SELECT coalesce(min(seq), 1) FROM entries WHERE session_id = ?", (id,)).get
        return _Heir(id, until, first - 1)
    return None


def _hand_over(db: apsw.Connection, session_id: str, heir: _Heir) -> None:
    """Give the heir what it shares with the session; the other forks share it with the heir from now on."""
    names = {"session": session_id, "heir": heir.id, "until": heir.until, "shift": heir.last_seq - heir.until}
    forget(db, heir.id)
    db.execute(
        "UPDATE sessions SET forked_from = :heir, forked_at = forked_at + :shift "
        "WHERE forked_from = :session AND id <> :heir",
        names,
    )
    db.execute(
        "UPDATE sessions SET forked_from = source.forked_from, forked_at = source.forked_at "
        "FROM sessions AS source WHERE source.id = :session AND sessions.id = :heir",
        names,
    )
    db.execute(
        "UPDATE entries SET session_id = :heir, seq = seq + :shift WHERE session_id = :session AND seq <= :until", names
    )


def find(folder: Path, session_id: str) -> tuple[str, Path]:
    """The whole id of the one session in the trash that begins so, and its newest file. Raises `StorageError`."""
    files = sorted(folder.glob("*.jsonl"), key=lambda file: (len(file.name), file.name))
    newest = {file.name.split(".")[0]: file for file in files}
    found = [id for id in newest if id.startswith(session_id)]
    if len(found) != 1:
        count = "Several sessions begin" if found else "No session begins"
        there = ", ".join(newest) or "nothing"
        raise StorageError(f"{count} with {session_id!r} in the trash {folder}, which holds {there}.")
    return found[0], newest[found[0]]


def restore(db: apsw.Connection, file: Path) -> None:
    """Put back the session of a file. Raises `StorageError` when it is there and has entries."""
    try:
        first, *rest = file.read_bytes().splitlines()
        header = msgspec.json.decode(first, type=_Header)
        rows = [msgspec.json.decode(line, type=dict[str, Any]) for line in rest]
        session = {name: header.session[name] for name in _SESSION}
    except (OSError, ValueError, KeyError) as error:
        raise StorageError(f"{file} cannot be read ({error}): nothing was changed.") from error
    id = session["id"]
    if db.execute("SELECT 1 FROM entries WHERE session_id = ?", (id,)).get:
        raise StorageError(f"Session {id} has entries: agentcli sessions rm {id} makes room for what {file} holds.")
    source = (header.forked_from, header.forked_at)
    query = "SELECT id FROM entries WHERE session_id = ? AND seq = ?"
    shares = bool(header.shared) and db.execute(query, source).get == rows[header.shared - 1]["id"]
    db.execute(
        "INSERT INTO sessions (id, cwd, name, title, created, updated, used, user_id, forked_from, forked_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
        "title = excluded.title, forked_from = excluded.forked_from, forked_at = excluded.forked_at",
        (*session.values(), *(source if shares else (None, None))),
    )
    for row in rows[header.shared if shares else 0 :]:
        db.execute(INSERT_ENTRY, {"session_id": id, **row})


def _rows(db: apsw.Connection, session_id: str, until: int) -> list[dict[str, Any]]:
    """Text that is damaged is kept as far as it is text; its checksum tells that it was."""
    names = ", ".join(_ENTRY).replace("body", "CAST(body AS BLOB)")
    query = f"SELECT {names} FROM entries WHERE session_id = ? AND seq <= ? ORDER BY seq"  # noqa: S608 - our names
    rows = (dict(zip(_ENTRY, row, strict=True)) for row in db.execute(query, (session_id, until)))
    return [{**row, "body": row["body"].decode(errors="replace")} for row in rows]


def _new_file(folder: Path, session_id: str) -> Path:
    """What an earlier `remove` left there is kept."""
    numbers = (
        f"{session_id}.{number}.jsonl" if number > 1 else f"{session_id}.jsonl" for number in range(1, 1_000_000)
    )
    return next(file for file in map(folder.joinpath, numbers) if not file.exists())
