"""The tables of sessions.db, and how an older file becomes a newer one."""

from __future__ import annotations

import apsw

from agentcli.errors import StorageError

VERSION = 1

# The entries of a session form a tree through parent_id; `head` is the newest entry of its branch. A forked session
# begins at an entry of another one. A result's id is its call's id, so ids are unique within a session only.
_TABLES = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    cwd TEXT NOT NULL,
    name TEXT NOT NULL,
    title TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    forked_from TEXT,
    forked_at INTEGER
) STRICT;
CREATE INDEX sessions_by_cwd ON sessions (cwd, updated);
CREATE TABLE entries (
    session_id TEXT NOT NULL REFERENCES sessions (id),
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    parent_id TEXT,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    schema_version INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (session_id, seq)
) STRICT, WITHOUT ROWID;
"""


def prepare(connection: apsw.Connection) -> None:
    """Make or bring up the tables. Raises `StorageError` for a file of a newer agentcli, or of another program."""
    if connection.pragma("user_version") == VERSION:
        return
    with connection:  # from here on nobody else makes them
        _bring_up(connection)


def _bring_up(connection: apsw.Connection) -> None:
    version = connection.pragma("user_version")
    if version == VERSION:
        return
    if version > VERSION:
        raise StorageError(
            f"{connection.filename} was written by a newer agentcli (version {version}, this one knows {VERSION}): "
            "update agentcli."
        )
    if connection.execute("SELECT count(*) FROM sqlite_master").get:
        raise StorageError(f"{connection.filename} belongs to another program: move it away.")
    connection.execute(_TABLES)
    connection.pragma("user_version", VERSION)
