"""Changes stored sessions: moves them to the trash and back, and redacts texts in their entries for good."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import msgspec

from agentcli.agent.interfaces import StoredEntries, subagents_owner
from agentcli.conversation.entries import ContextNote, Unreadable, entry_now
from agentcli.conversation.history import last_prompt_of, title_of
from agentcli.errors import StorageError
from agentcli.infra.sessions.tables import ENTRY, Tables, entries_of, is_stored, last_seq, new_id, read_entry

REDACTED = "[redacted]"

# Entries of a removed session count once in the fork that shares most, which has copies of all that other forks share.
_HAND_OVER = """
UPDATE entries SET own = true WHERE trashed = 0 AND session_id = (
    SELECT copy.session_id FROM entries AS gone JOIN entries AS copy ON copy.origin = gone.origin AND copy.trashed = 0
    WHERE gone.session_id = :id AND gone.trashed = :batch AND gone.own
    GROUP BY copy.session_id ORDER BY count(*) DESC, min(copy.n) LIMIT 1
) AND origin IN (SELECT origin FROM entries WHERE session_id = :id AND trashed = :batch AND own)
"""
_TAKE_BACK = """
UPDATE entries SET own = NOT EXISTS (
    SELECT 1 FROM entries AS other
    WHERE other.origin = entries.origin AND other.trashed = 0 AND other.own AND other.n <> entries.n
) WHERE session_id = :id AND trashed = 0
"""
_FAMILY = "(SELECT id FROM sessions WHERE id = :id OR user_id = :agents)"  # a session and its subagents
# The entries of the family with all their copies, and everything in the trash.
_AFFECTED = f"""
SELECT n, session_id, trashed, {ENTRY} FROM entries
WHERE trashed > 0 OR origin IN (SELECT origin FROM entries WHERE session_id IN {_FAMILY} AND trashed = 0)
"""  # noqa: S608 - constant text


async def remove(db: Tables, session_id: str) -> None:
    """Move a session to the trash."""
    batch = await db.value("SELECT max(trashed) + 1 FROM sessions WHERE id = :id", id=session_id)
    await _move(db, session_id, 0, batch)
    await db.rows(_HAND_OVER, id=session_id, batch=batch)
    await db.rows(db.forget_stream, id=session_id)


async def _move(db: Tables, session_id: str, batch: float, target: float) -> None:
    names = {"id": session_id, "agents": subagents_owner(session_id), "batch": batch, "target": target}
    for table, id in (("sessions", "id"), ("entries", "session_id")):
        statement = f"UPDATE {table} SET trashed = :target WHERE {id} IN {_FAMILY} AND trashed = :batch"  # noqa: S608
        await db.rows(statement, **names)


async def id_in_trash(db: Tables, session_id: str) -> str:
    """Return the id of the one session in the trash whose id begins so. Raises `StorageError`."""
    query = "SELECT DISTINCT id FROM sessions WHERE trashed > 0 AND id >= :id AND id < :end"
    ids = [str(id) for (id,) in await db.rows(query, id=session_id, end=f"{session_id}\U0010ffff")]
    if len(ids) != 1:
        count = "Several sessions begin" if ids else "No session begins"
        raise StorageError(f"{count} with {session_id!r} in the trash.")
    return ids[0]


async def restore(db: Tables, session_id: str) -> None:
    """Bring back the session of that id that was removed last. Raises `StorageError` if there is one again."""
    if await is_stored(db, session_id):
        raise StorageError(
            f"There is a session {session_id} again: agentcli sessions rm {session_id} makes room for the one in the "
            "trash."
        )
    await _move(db, session_id, await db.value("SELECT max(trashed) FROM sessions WHERE id = :id", id=session_id), 0)
    await db.rows(_TAKE_BACK, id=session_id)


class Secrets:
    """Texts to be replaced. Raises `StorageError` if there is none."""

    def __init__(self, texts: Sequence[str]) -> None:
        plain = {text for text in texts if text.strip()}
        if not plain:
            raise StorageError("There is no text to redact: give one, or lines of them on stdin with -.")
        # The forms in JSON are in strings that contain JSON, and in bodies that cannot be decoded any more.
        self._texts = plain | {json.dumps(text, ensure_ascii=way)[1:-1] for text in plain for way in (True, False)}

    def redact(self, text: str) -> tuple[str, int]:
        """Return a text without the secrets, and the number of places they were in; overlapping ones are one place."""
        spans = sorted(
            (match.start(), match.start() + len(secret))
            for secret in self._texts
            if secret in text
            for match in re.finditer(f"(?={re.escape(secret)})", text)
        )
        pieces: list[str] = []
        end = 0
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
        """Return a row of `ENTRY` without the secrets, and the number of places they were in.

        Raises:
            StorageError: If the entry could not be read any more without them.
        """
        *rest, checksum, body = row
        body = body.encode() if isinstance(body, str) else body
        try:
            value, places = self._redact_strings(msgspec.json.decode(body))
            redacted = msgspec.json.encode(value)
        except (ValueError, RecursionError):  # the body is no JSON
            text, places = self.redact(body.decode(errors="surrogateescape"))
            redacted = text.encode(errors="surrogateescape")
        if not places:
            return row, 0
        before, after = read_entry(row), read_entry((*rest, None, redacted))
        if isinstance(after.body, Unreadable) and not isinstance(before.body, Unreadable):
            raise StorageError(
                f"Entry {before.id} could not be read any more without that text: give more of it. Nothing was changed."
            )
        was_sound = checksum in (None, crc32(body))  # the checksum of a damaged entry still shows the damage
        return (*rest, crc32(redacted) if was_sound else checksum, redacted.decode(errors="replace")), places


async def redact(db: Tables, session_id: str, secrets: Secrets) -> int:
    """Redact a session, all copies of its entries, and the trash.

    Return the number of places in the session and its subagents.
    """
    names = {"id": session_id, "agents": subagents_owner(session_id)}
    family = {str(id) for (id,) in await db.rows(_FAMILY[1:-1], **names)}
    changes: list[tuple[int, Sequence[Any]]] = []
    changed: set[tuple[str, float]] = set()
    total = 0
    async for n, id, trashed, *row in db.stream(_AFFECTED, **names):
        redacted, places = secrets.redact_row(row)
        if places:
            changes.append((n, redacted))
            changed.add((str(id), trashed))
            total += places * (id in family and not trashed)
    await db.replace_bodies(changes)
    if total:
        newest = (await entries_of(db, session_id))[-1]
        text = f"Texts were struck out of this session in {total} place{'s' * (total != 1)}."
        note = entry_now(new_id(), newest.id, ContextNote(text))
        await db.insert(session_id, StoredEntries((note,), await last_seq(db, session_id) + 1))
    for id, trashed in sorted(changed):
        # A title is the beginning of a prompt and may end in the middle of a secret, so it is made anew.
        entries = await entries_of(db, id, trashed=trashed)
        which = "WHERE id = :id AND trashed = :trashed"
        name = await db.value(f"SELECT name FROM sessions {which}", id=id, trashed=trashed)  # noqa: S608 - constant text
        await db.rows(
            f"UPDATE sessions SET title = :title, last_prompt = :last_prompt, name = :name {which}",  # noqa: S608
            title=title_of(entries), last_prompt=last_prompt_of(entries), name=secrets.redact(name)[0],
            id=id, trashed=trashed,
        )  # fmt: skip
    for id in {session_id, *(id for id, trashed in changed if not trashed)}:
        await db.rows(db.forget_stream, id=id)
    return total
