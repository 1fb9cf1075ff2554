"""Reads the trash of the last release: a folder beside the database, with a file of JSON lines for each session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import msgspec

from agentcli.conversation.titles import last_prompt_of
from agentcli.errors import StorageError
from agentcli.infra.sessions.log import read_entry

_SESSION = """
INSERT INTO sessions (id, trashed, cwd, name, user_id, title, last_prompt, created, updated, used)
VALUES (:id, :trashed, :cwd, :name, :user_id, :title, :last_prompt, :created, :updated, :used)
"""
_ENTRY = """
INSERT INTO entries (
    n, origin, own, session_id, trashed, seq, id, parent_id, time, kind, schema_version, checksum, body
)
SELECT n, coalesce((SELECT origin FROM entries WHERE session_id = :source AND trashed = 0 AND id = :id), n), true,
    :session_id, :trashed, :seq, :id, :parent_id, :time, :kind, :schema_version, :checksum, :body
FROM (SELECT coalesce(max(n), 0) + 1 AS n FROM entries)
"""

_READ = ("id", "parent_id", "time", "schema_version", "checksum", "body")  # for `read_entry`


class _Header(msgspec.Struct, frozen=True):
    """A session; its first `shared` entries are also those of `forked_from`."""

    session: dict[str, Any]
    forked_from: str | None
    shared: int


def find_file(folder: Path, session_id: str) -> Path | None:
    """The newest file of the one session whose id begins so. Raises `StorageError` where there are several."""
    files = sorted(folder.glob("*.jsonl"), key=lambda file: (len(file.name), file.name))
    newest = {file.name.partition(".")[0]: file for file in files}
    found = [file for id, file in newest.items() if id.startswith(session_id)]
    if len(found) > 1:
        raise StorageError(f"Several sessions begin with {session_id!r} in the trash.")
    return found[0] if found else None


def take_over(db: apsw.Connection, file: Path) -> None:
    """Copy the session of a file to the trash in the database. Raises `StorageError`."""
    try:
        first, *lines = file.read_bytes().splitlines()
        header = msgspec.json.decode(first, type=_Header)
        rows = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
        entries = [read_entry([row[name] for name in _READ]) for row in rows]
        id = header.session["id"]
        trashed = db.execute("SELECT coalesce(max(trashed), 0) + 1 FROM sessions WHERE id = ?", (id,)).get
        with db:  # all of it or nothing
            db.execute(_SESSION, {**header.session, "trashed": trashed, "last_prompt": last_prompt_of(entries)})
            for seq, row in enumerate(rows, 1):
                source = header.forked_from if seq <= header.shared else None
                db.execute(_ENTRY, {**row, "seq": seq, "source": source, "session_id": id, "trashed": trashed})
    except (OSError, ValueError, KeyError) as error:
        raise StorageError(f"{file} cannot be read ({error}): nothing was changed.") from error
