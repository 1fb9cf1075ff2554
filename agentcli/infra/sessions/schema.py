"""The tables of sessions.db, and how an older file becomes a newer one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw

from agentcli.errors import StorageError
from agentcli.infra.sessions.files import free_name, sync_folder

VERSION = 4

# `changes_of_files` is for blame. `words` is the index for searching, which keeps no text. Its row
# `number << 32 | seq + 2**31` is an entry of the session `number` in `indexed`, whose entries up to `seq` it holds.
_INDEX = """
CREATE INDEX IF NOT EXISTS changes_of_files ON entries (time) WHERE kind IN ('files_changed', 'files_restored');
CREATE TABLE indexed (
    number INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL UNIQUE,
    seq INTEGER NOT NULL
) STRICT;
CREATE VIRTUAL TABLE words USING fts5(
    text, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 0'
);
"""

# The entries of a session form a tree through parent_id; the newest one is the head. A forked session shares the
# entries of another one up to `forked_at`, and takes them over with numbers below its own where that one is removed. A
# result's id is its call's id, which a model may use again. `used` grows with each use of any session: unlike `updated`
# it holds when the clock was wrong. `checksum` is the CRC-32 of the body's bytes, NULL in rows from before version 4.
_TABLES = f"""
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    cwd TEXT NOT NULL,
    name TEXT NOT NULL,
    title TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    forked_from TEXT,
    forked_at INTEGER,
    used INTEGER NOT NULL DEFAULT 0,
    user_id TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX sessions_by_use ON sessions (used, cwd);
CREATE TABLE entries (
    session_id TEXT NOT NULL REFERENCES sessions (id),
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    parent_id TEXT,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    schema_version INTEGER NOT NULL,
    body TEXT NOT NULL,
    checksum INTEGER,
    PRIMARY KEY (session_id, seq)
) STRICT, WITHOUT ROWID;
{_INDEX}"""

# From each version to the next. Times that have not come yet are of a clock that was wrong, and tell nothing.
_STEPS = {
    1: """
ALTER TABLE sessions ADD COLUMN used INTEGER NOT NULL DEFAULT 0;
UPDATE sessions SET used = ranked.place FROM (
    SELECT id, row_number() OVER (ORDER BY updated <= CAST(strftime('%s', 'now') AS INTEGER) + 1, updated) AS place
    FROM sessions
) AS ranked WHERE ranked.id = sessions.id;
DROP INDEX sessions_by_cwd;
CREATE INDEX sessions_by_use ON sessions (used, cwd);
""",
    2: "ALTER TABLE sessions ADD COLUMN user_id TEXT NOT NULL DEFAULT '';",
    3: f"ALTER TABLE entries ADD COLUMN checksum INTEGER; {_INDEX}",
}


def prepare(connection: apsw.Connection, on_notice: Callable[[str], None]) -> None:
    """Make or bring up the tables; an older file is copied first. Raises `StorageError` for one that is not ours."""
    if connection.pragma("user_version") == VERSION:
        return
    with connection:  # from here on nobody else makes them
        _bring_up(connection, on_notice)


def checked_version(connection: apsw.Connection) -> int:
    """The version of its tables, 0 if it has none.

    Raises `StorageError` for a file of a newer agentcli, or of another program.
    """
    version = int(connection.pragma("user_version"))
    if version > VERSION:
        raise StorageError(
            f"{connection.filename} was written by a newer agentcli (version {version}, this one knows {VERSION}): "
            "update agentcli."
        )
    if version not in (0, *_STEPS, VERSION) or (
        version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").get
    ):
        raise StorageError(f"{connection.filename} belongs to another program: move it away.")
    return version


def _bring_up(connection: apsw.Connection, on_notice: Callable[[str], None]) -> None:
    version = checked_version(connection)
    if version == VERSION:
        return
    if version:
        kept = _keep_copy(connection, version)
        on_notice(f"The session database is brought up to this version of agentcli: {kept} is the one of before.")
        for step in range(version, VERSION):
            connection.execute(_STEPS[step])
    else:
        connection.execute(_TABLES)
    connection.pragma("user_version", VERSION)


def _keep_copy(connection: apsw.Connection, version: int) -> Path:
    """Copy the database beside itself, with what is still in its write-ahead log."""
    path = Path(connection.filename)
    part = path.with_name(f"{path.name}.v{version}.part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    # Another connection reads, since SQLite copies nothing from the one that writes.
    source, copy = apsw.Connection(str(path)), apsw.Connection(str(part))
    with closing(source), closing(copy), copy.backup("main", source, "main") as backup:
        backup.step()
    kept = free_name(path, f".v{version}")
    part.replace(kept)
    sync_folder(path.parent)
    return kept
