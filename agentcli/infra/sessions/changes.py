"""Changes what is stored: moves sessions to the trash and back, and replaces texts in entries for good."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import msgspec

from agentcli.agent.interfaces import Stored
from agentcli.conversation.entries import ContextNote, Unreadable, entry_now
from agentcli.conversation.titles import last_prompt_of, title_of
from agentcli.errors import StorageError
from agentcli.infra.sessions.ids import new_id
from agentcli.infra.sessions.log import ENTRY, Tables, entries_of, is_stored, last_seq, read_entry, value

REDACTED = "[redacted]"

_MOVE = (
    "UPDATE sessions SET trashed = :target WHERE id = :id AND trashed = :batch",
    "UPDATE entries SET trashed = :target WHERE session_id = :id AND trashed = :batch",
)
# The fork that shares most has copies of all that any other one shares: they count once from now on.
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
# The entries of a session with all copies of them, and everything in the trash.
_AFFECTED = f"""
SELECT n, session_id, trashed, {ENTRY} FROM entries
WHERE trashed > 0 OR origin IN (SELECT origin FROM entries WHERE session_id = :id AND trashed = 0)
"""  # noqa: S608 - our words


async def remove(db: Tables, session_id: str) -> None:
    """Move a session to the trash."""
    batch = await value(db, "SELECT max(trashed) + 1 FROM sessions WHERE id = :id", id=session_id)
    for statement in _MOVE:
        await db.rows(statement, id=session_id, batch=0, target=batch)
    await db.rows(_HAND_OVER, id=session_id, batch=batch)


async def id_in_trash(db: Tables, session_id: str) -> str:
    """The whole id of the one session in the trash that begins so. Raises `StorageError`."""
    query = "SELECT DISTINCT id FROM sessions WHERE trashed > 0 AND id >= :id AND id < :end"
    found = [str(id) for (id,) in await db.rows(query, id=session_id, end=f"{session_id}\U0010ffff")]
    if len(found) != 1:
        raise StorageError(
            f"{'Several sessions begin' if found else 'No session begins'} with {session_id!r} in the trash."
        )
    return found[0]


async def restore(db: Tables, session_id: str) -> None:
    """Bring back what was removed last. Raises `StorageError` when there is a session of that id again."""
    if await is_stored(db, session_id):
        raise StorageError(
            f"There is a session {session_id} again: agentcli sessions rm {session_id} makes room for the one in the "
            "trash."
        )
    batch = await value(db, "SELECT max(trashed) FROM sessions WHERE id = :id", id=session_id)
    for statement in _MOVE:
        await db.rows(statement, id=session_id, batch=batch, target=0)
    await db.rows(_TAKE_BACK, id=session_id)


class Secrets:
    """Texts to be replaced. Raises `StorageError` when there is none."""

    def __init__(self, texts: Sequence[str]) -> None:
        given = {text for text in texts if text.strip()}
        if not given:
            raise StorageError("There is no text to redact: give one, or lines of them on stdin with -.")
        # Also as JSON writes them, which is found in strings, and in bodies that cannot be decoded any more.
        self._texts = given | {json.dumps(text, ensure_ascii=way)[1:-1] for text in given for way in (True, False)}

    def redact(self, text: str) -> tuple[str, int]:
        """The text without them, and in how many places they were; those that overlap are one place."""
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

    def redact_row(self, row: Sequence[Any]) -> tuple[Sequence[Any], int]:
        """A row as `read_entry` takes it without them, and in how many places they were.

        Raises `StorageError` where the entry could not be read any more.
        """
        *rest, checksum, body = row
        body = body.encode() if isinstance(body, str) else body
        redacted, places = self._redact_body(body)
        if not places:
            return row, 0
        before, after = read_entry(row), read_entry((*rest, None, redacted))
        if isinstance(after.body, Unreadable) and not isinstance(before.body, Unreadable):
            raise StorageError(
                f"Entry {before.id} could not be read any more without that text: give more of it. Nothing was changed."
            )
        was_sound = checksum in (None, crc32(body))  # what was damaged stays known as damaged
        return (*rest, crc32(redacted) if was_sound else checksum, redacted.decode(errors="replace")), places

    def _redact_body(self, body: bytes) -> tuple[bytes, int]:
        """In every string of it, or in its raw text where that is no JSON."""
        try:
            value, places = self._redact_value(msgspec.json.decode(body))
            return msgspec.json.encode(value), places
        except (ValueError, RecursionError):
            text, places = self.redact(body.decode(errors="surrogateescape"))
            return text.encode(errors="surrogateescape"), places

    def _redact_value(self, value: Any) -> tuple[Any, int]:
        match value:
            case str():
                return self.redact(value)
            case list():
                done = [self._redact_value(item) for item in value]
                return [item for item, _ in done], sum(places for _, places in done)
            case dict():
                names, names_places = self._redact_value(list(value))
                items, places = self._redact_value(list(value.values()))
                return dict(zip(names, items, strict=True)), names_places + places
            case _:
                return value, 0


async def redact(db: Tables, session_id: str, secrets: Secrets) -> tuple[int, list[str]]:
    """Replace them in all copies of the session's entries and in the trash, and say so in a new entry.

    Gives the number of places in the session, and the sessions that changed.
    """
    changes: list[tuple[int, Sequence[Any]]] = []
    changed: set[tuple[str, float]] = set()
    total = 0
    async for n, id, trashed, *row in db.stream(_AFFECTED, id=session_id):
        redacted, places = secrets.redact_row(row)
        if places:
            changes.append((n, redacted))
            changed.add((str(id), trashed))
            total += places * ((id, trashed) == (session_id, 0))
    await db.replace_bodies(changes)
    if total:
        newest = (await entries_of(db, session_id))[-1]
        text = f"Texts were struck out of this session in {total} place{'s' * (total != 1)}."
        note = entry_now(new_id(), newest.id, ContextNote(text))
        await db.insert(session_id, Stored((note,), await last_seq(db, session_id) + 1))
    for id, trashed in sorted(changed):
        # A title is the beginning of a prompt, and may end in the middle of a secret: it is made anew.
        entries = await entries_of(db, id, trashed=trashed)
        which = "WHERE id = :id AND trashed = :trashed"
        name = await value(db, f"SELECT name FROM sessions {which}", id=id, trashed=trashed)  # noqa: S608 - our words
        await db.rows(
            f"UPDATE sessions SET title = :title, last_prompt = :last_prompt, name = :name {which}",  # noqa: S608
            title=title_of(entries), last_prompt=last_prompt_of(entries), name=secrets.redact(name)[0],
            id=id, trashed=trashed,
        )  # fmt: skip
    return total, [id for id, trashed in changed if not trashed]
