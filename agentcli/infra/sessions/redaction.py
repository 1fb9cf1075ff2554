"""Strikes texts out of stored entries, so that no byte of them is left in the database."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import msgspec

from agentcli.agent.interfaces import Stored
from agentcli.conversation.entries import ContextNote, Entry, Unreadable, as_readable, entry_now, to_record
from agentcli.conversation.titles import title_of
from agentcli.errors import StorageError
from agentcli.infra.sessions.database import connect
from agentcli.infra.sessions.ids import new_id
from agentcli.infra.sessions.index import forget
from agentcli.infra.sessions.log import insert
from agentcli.infra.sessions.reading import ENTRIES, entries_of, last_seq, lineage, read_entry

STRUCK = "[redacted]"
_RELATIVES = """
WITH RECURSIVE relatives (id) AS (
    VALUES (?) UNION SELECT sessions.id FROM sessions JOIN relatives ON forked_from = relatives.id
) SELECT id, name FROM sessions WHERE id IN relatives
"""


class Secrets:
    """Texts to be struck out. Raises `StorageError` when there is none."""

    def __init__(self, texts: Sequence[str]) -> None:
        given = {text for text in texts if text.strip()}
        if not given:
            raise StorageError("There is no text to strike out: give one, or lines of them on stdin with -.")
        # Also as JSON writes them, which stands in strings, and in bodies that cannot be decoded any more.
        self._texts = given | {json.dumps(text, ensure_ascii=way)[1:-1] for text in given for way in (True, False)}

    def struck(self, text: str) -> tuple[str, int]:
        """The text without them, and in how many places they stood; those that overlap are one place."""
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
                pieces += (text[end:start], STRUCK)
            end = max(end, stop)
        return "".join((*pieces, text[end:])), len(pieces) // 2

    def struck_body(self, body: bytes) -> tuple[bytes, int]:
        """A stored body without them: in every string of it, or in its raw text where that is no JSON."""
        try:
            value, places = self._struck_value(msgspec.json.decode(body))
            return msgspec.json.encode(value), places
        except (ValueError, RecursionError):
            text, places = self.struck(body.decode(errors="surrogateescape"))
            return text.encode(errors="surrogateescape"), places

    def _struck_value(self, value: Any) -> tuple[Any, int]:
        match value:
            case str():
                return self.struck(value)
            case list():
                done = [self._struck_value(item) for item in value]
                return [item for item, _ in done], sum(places for _, places in done)
            case dict():
                names, names_places = self._struck_value(list(value))
                items, places = self._struck_value(list(value.values()))
                return dict(zip(names, items, strict=True)), names_places + places
            case _:
                return value, 0


def note_of(places: int) -> ContextNote:
    return ContextNote(f"Texts were struck out of this session in {places} place{'s' * (places != 1)}.")


def redact(db: apsw.Connection, session_id: str, secrets: Secrets) -> int:
    """Strike them out of all entries the session shows, and say so in a new one. `wipe` then removes what is left."""
    parts = lineage(db, session_id)
    changes: list[tuple[str, int | None, str, int]] = []
    total = 0
    for part in parts:
        query = ENTRIES.replace("SELECT", "SELECT seq,") + "WHERE session_id = ? AND seq <= ? ORDER BY seq"
        for seq, *row in db.execute(query, part):
            body, checksum, places = struck_row(row, secrets)
            if places:
                changes.append((body, checksum, part[0], seq))
                total += places
    for body_and_place in changes:
        db.execute("UPDATE entries SET body = ?, checksum = ? WHERE session_id = ? AND seq = ?", body_and_place)
    if total:
        newest = entries_of(db, session_id)[-1]
        insert(db, session_id, Stored((entry_now(new_id(), newest.id, note_of(total)),), last_seq(db, session_id) + 1))
        for id, _ in parts:
            forget(db, id)
        db.execute("INSERT INTO words (words) VALUES ('optimize')")  # only merging takes deleted words out of it
        _strike_names(db, parts[0][0], secrets)
    return total


def struck_row(row: Sequence[Any], secrets: Secrets) -> tuple[str, int | None, int]:
    """The body of a row as `read_entry` takes it, its checksum, and in how many places it changed."""
    body, places = secrets.struck_body(row[-1])
    if places:
        _refuse_unreadable(read_entry(row), read_entry([*row[:4], None, body]))
    was_sound = row[4] in (None, crc32(row[-1]))  # what was damaged stays known as damaged
    return body.decode(errors="replace"), crc32(body) if was_sound else row[4], places


def struck_entry(entry: Entry, secrets: Secrets) -> tuple[Entry, int]:
    record = to_record(entry)
    body, places = secrets.struck_body(record["body"].encode())
    after = as_readable({**record, "body": body})
    _refuse_unreadable(entry, after)
    return after, places


def _refuse_unreadable(before: Entry, after: Entry) -> None:
    if isinstance(after.body, Unreadable) and not isinstance(before.body, Unreadable):
        raise StorageError(
            f"Entry {before.id} could not be read any more without that text: give more of it. Nothing was changed."
        )


def relatives(db: apsw.Connection, session_id: str) -> list[str]:
    """The sessions that may share entries with one, and itself."""
    return [str(id) for id, _ in db.execute(_RELATIVES, (lineage(db, session_id)[0][0],)).fetchall()]


def _strike_names(db: apsw.Connection, root: str, secrets: Secrets) -> None:
    """A title is the beginning of a prompt, and may end in the middle of a secret: it is made anew."""
    for id, name in db.execute(_RELATIVES, (root,)).fetchall():
        names = title_of(entries_of(db, str(id))), secrets.struck(str(name))[0]
        db.execute("UPDATE sessions SET title = ?, name = ? WHERE id = ?", (*names, id))


def wipe(path: Path) -> None:
    """Write the file anew. Pages keep bytes of what was deleted or moved, also where they are not free."""
    try:
        with closing(connect(path, lambda text: None)) as db:
            db.execute("VACUUM")
            is_read, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
            if is_read:
                raise apsw.BusyError("another program reads it")
    except apsw.Error as error:
        raise StorageError(
            f"The texts are struck out, but {path} could not be written anew ({error}) and may still hold bytes of "
            "them: close other agentcli programs, make room for a copy of the file, and redact again."
        ) from error
