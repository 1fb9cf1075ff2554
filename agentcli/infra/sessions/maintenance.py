"""Moves stored sessions to the trash and back, and redacts them permanently.

No prompt needs any of this, so other modules import it only when they use it.
"""

import json
import re
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import msgspec

from agentcli.agent.interfaces import StoredEntries, subagents_owner
from agentcli.conversation.entries import ContextNote, Unreadable, entry_now
from agentcli.conversation.history import counted, title_of
from agentcli.errors import StorageError
from agentcli.infra.sessions import tables

REDACTED = "[redacted]"

_FAMILY = "SELECT id FROM sessions WHERE id = :id OR user_id = :agents"  # a session and its subagents


async def remove(db: tables.Tables, session_id: str) -> None:
    """Move a session to the trash."""
    new_batch = await db.value("SELECT max(trashed) + 1 FROM sessions WHERE id = :id", id=session_id)
    await _move(db, session_id, source=0, target=new_batch)
    await db.rows(tables.SQL["hand_over"], id=session_id, batch=new_batch)  # shared entries now belong to a fork
    await db.rows(db.forget_stream, id=session_id)


async def _move(db: tables.Tables, session_id: str, *, source: float, target: float) -> None:
    """Move a session and its subagents between batches: 0 is outside the trash, each removal makes a new one."""
    names = {"id": session_id, "agents": subagents_owner(session_id), "source": source, "target": target}
    for table, id_column in (("sessions", "id"), ("entries", "session_id")):
        where = f"{id_column} IN ({_FAMILY}) AND trashed = :source"
        await db.rows(f"UPDATE {table} SET trashed = :target WHERE {where}", **names)  # noqa: S608 - constant text


async def id_in_trash(db: tables.Tables, session_id: str) -> str:
    """Return the full id of the one session in the trash whose id begins with `session_id`. Raises `StorageError`."""
    query = "SELECT DISTINCT id FROM sessions WHERE trashed > 0 AND id >= :id AND id < :end"
    ids = [str(id) for (id,) in await db.rows(query, id=session_id, end=f"{session_id}\U0010ffff")]
    if len(ids) != 1:
        count = "Several sessions begin" if ids else "No session begins"
        raise StorageError(f"{count} with {session_id!r} in the trash.")
    return ids[0]


async def restore(db: tables.Tables, session_id: str) -> None:
    """Restore the last removed session with an id. Raises `StorageError` if there is a session with that id again."""
    if await tables.is_stored(db, session_id):
        raise StorageError(
            f"There is a new session with the id {session_id}. To restore the old one, remove the new one first: "
            f"agentcli sessions rm {session_id}"
        )
    newest_batch = await db.value("SELECT max(trashed) FROM sessions WHERE id = :id", id=session_id)
    await _move(db, session_id, source=newest_batch, target=0)
    await db.rows(tables.SQL["restore_own_entries"], id=session_id)


class Secrets:
    """Texts to be redacted. The constructor raises `StorageError` if there are none."""

    def __init__(self, texts: Sequence[str]) -> None:
        plain = {text for text in texts if text.strip()}
        if not plain:
            raise StorageError("There is no text to redact. Give one, or lines of them on stdin with -.")
        # A text has its JSON form in strings that contain JSON, and in bodies that can no longer be decoded.
        in_json = {json.dumps(text, ensure_ascii=is_ascii) for text in plain for is_ascii in (True, False)}
        self._texts = plain | {quoted.removeprefix('"').removesuffix('"') for quoted in in_json}

    def redact(self, text: str) -> tuple[str, int]:
        """Return a text without the secrets, and the number of redacted places; overlapping secrets are one place."""
        spans = sorted(
            (match.start(), match.start() + len(secret))
            for secret in self._texts
            if secret in text
            for match in re.finditer(f"(?={re.escape(secret)})", text)  # a lookahead also finds overlapping places
        )
        pieces: list[str] = []  # a text and `REDACTED` for each place
        end = 0  # of the previous place
        for start, stop in spans:
            if start >= end:
                pieces += (text[end:start], REDACTED)
            end = max(end, stop)
        return "".join((*pieces, text[end:])), len(pieces) // 2

    def _redact_strings(self, value: Any) -> tuple[Any, int]:
        """Redact every string in a value of JSON, names included."""
        match value:
            case str():
                return self.redact(value)
            case list():
                items = [self._redact_strings(item) for item in value]
                return [item for item, _ in items], sum(places for _, places in items)
            case dict():
                names, places = self._redact_strings([*value])
                items, in_values = self._redact_strings([*value.values()])
                return dict(zip(names, items, strict=True)), places + in_values
        return value, 0

    def redact_row(self, row: Sequence[Any]) -> tuple[Sequence[Any], int]:
        """Redact a row of `tables.ENTRY_COLUMNS`, and count the places. Raises `StorageError` if it gets unreadable."""
        *other_columns, checksum, body = row
        body = body.encode() if isinstance(body, str) else body
        try:
            value, places = self._redact_strings(msgspec.json.decode(body))
            redacted = msgspec.json.encode(value)
        except (ValueError, RecursionError):  # the body is not JSON
            text, places = self.redact(body.decode(errors="surrogateescape"))
            redacted = text.encode(errors="surrogateescape")
        if not places:
            return row, 0
        before, after = tables.read_entry(row), tables.read_entry((*other_columns, None, redacted))
        if isinstance(after.body, Unreadable) and not isinstance(before.body, Unreadable):
            raise StorageError(
                f"Entry {before.id} could not be read any more without that text. Give more of it. Nothing was changed."
            )
        # A damaged entry keeps its wrong checksum.
        new_checksum = crc32(redacted) if checksum in (None, crc32(body)) else checksum
        return (*other_columns, new_checksum, redacted.decode(errors="replace")), places


async def redact(db: tables.Tables, session_id: str, secrets: Secrets) -> int:
    """Redact a session, all copies of its entries, and the trash.

    Return the number of redacted places in the session and its subagents, without those in copies and in the trash.
    """
    names = {"id": session_id, "agents": subagents_owner(session_id)}
    family = {str(id) for (id,) in await db.rows(_FAMILY, **names)}
    new_rows: list[tuple[int, Sequence[Any]]] = []  # by the number of the entry
    changed_sessions: set[tuple[str, float]] = set()  # by id and batch of the trash, 0 for those not in it
    total = 0  # places in the family outside the trash
    # "affected" returns the entries of the family, their copies in other sessions, and everything in the trash.
    async for n, id, trashed, *row in db.stream(tables.SQL["affected"], **names):
        redacted, places = secrets.redact_row(row)
        if places:
            new_rows.append((n, redacted))
            changed_sessions.add((str(id), trashed))
        if id in family and not trashed:
            total += places
    await db.replace_bodies(new_rows)
    if total:  # the person must be able to see that something is missing
        newest = (await tables.entries_of(db, session_id))[-1]
        text = f"Texts were struck out of this session in {counted(total, 'place')}."
        note = entry_now(tables.new_id(), newest.id, ContextNote(text))
        await db.insert(session_id, StoredEntries((note,), await tables.last_seq(db, session_id) + 1))
    for id, trashed in sorted(changed_sessions):
        # A title is the beginning of a prompt and may end in the middle of a secret, so it is built again.
        entries = await tables.entries_of(db, id, trashed=trashed)
        where = "WHERE id = :id AND trashed = :trashed"
        name, _ = secrets.redact(await db.value(f"SELECT name FROM sessions {where}", id=id, trashed=trashed))  # noqa: S608
        await db.rows(
            f"UPDATE sessions SET title = :title, last_prompt = :last_prompt, name = :name {where}",  # noqa: S608
            title=title_of(entries),
            last_prompt=title_of(reversed(entries)),
            name=name,
            id=id,
            trashed=trashed,
        )
    for id in {session_id, *(id for id, trashed in changed_sessions if not trashed)}:
        await db.rows(db.forget_stream, id=id)  # its events contain the secrets, too
    return total
