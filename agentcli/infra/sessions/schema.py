"""The tables of sessions.db, and how an older file becomes a newer one."""

from __future__ import annotations

import apsw

from agentcli.errors import StorageError

VERSION = 3

# The entries of a session form a tree through parent_id; the newest one is the head. A forked session shares the
# entries of another one up to `forked_at`. A result's id is its call's id, which a model may use again. `used`
# grows with each use of any session: unlike `updated` it holds when the clock was wrong.
_TABLES = """
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
    PRIMARY KEY (session_id, seq)
) STRICT, WITHOUT ROWID;
"""

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
}


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
    if version in _STEPS:
        for step in range(version, VERSION):
            connection.execute(_STEPS[step])
    elif connection.execute("SELECT count(*) FROM sqlite_master").get:
        raise StorageError(f"{connection.filename} belongs to another program: move it away.")
    else:
        connection.execute(_TABLES)
    connection.pragma("user_version", VERSION)
