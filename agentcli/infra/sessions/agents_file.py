"""Takes over the file in which earlier versions kept the sessions of subagents."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import apsw

from agentcli.errors import StorageError
from agentcli.infra.sessions.sqlite import open_sessions

log = logging.getLogger(__name__)

_COLUMNS = "own, session_id, trashed, seq, id, parent_id, time, kind, schema_version, checksum, body"
_TAKE = f"""
INSERT INTO sessions (id, trashed, cwd, name, user_id, title, last_prompt, created, updated, used)
SELECT id, trashed, cwd, name, 'subagents of ' || user_id, title, last_prompt, created, updated, used
FROM agents.sessions WHERE id NOT IN (SELECT id FROM main.sessions);
INSERT INTO entries (n, origin, {_COLUMNS})
SELECT n + top, origin + top, {_COLUMNS} FROM agents.entries, (SELECT coalesce(max(n), 0) AS top FROM main.entries)
WHERE session_id NOT IN (SELECT session_id FROM main.entries)
"""  # noqa: S608 - our words


def take_over(connection: apsw.Connection, file: Path, on_notice: Callable[[str], None]) -> None:
    """Move the sessions of a file into the database, then delete it. What fails is tried again at the next start."""
    try:
        open_sessions(file, on_notice, may_replace=True).close()  # it may be damaged, or of an older version
        connection.execute("ATTACH ? AS agents", (str(file),))
        try:
            with connection:
                connection.execute(_TAKE)
        finally:
            connection.execute("DETACH agents")
        for suffix in ("", "-wal", "-shm", ".copy"):
            Path(f"{file}{suffix}").unlink(missing_ok=True)
    except (apsw.Error, StorageError, OSError) as error:
        log.warning("The conversations of subagents in %s are left there for now: %s", file, error)
