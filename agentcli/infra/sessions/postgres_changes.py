"""Moves sessions in Postgres to the trash and back, and strikes texts out of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from agentcli.agent.interfaces import Stored
from agentcli.conversation.entries import entry_now
from agentcli.conversation.titles import last_prompt_of, title_of
from agentcli.errors import StorageError
from agentcli.infra.sessions.ids import new_id
from agentcli.infra.sessions.postgres_database import Connection, storable, value
from agentcli.infra.sessions.postgres_log import ENTRY, INSERT, LAST_SEQ, entries_of, entry_of, rows_of, words_of
from agentcli.infra.sessions.redaction import Secrets, note_of, struck_row

_SESSION = "id, cwd, name, user_id, title, last_prompt, created, updated, used"

_INTO_TRASH = "UPDATE agentcli.{} SET trashed = %(now)s WHERE {} = %(id)s AND trashed = 0"
# What counted once in the session counts from now on in the one that shares most of it.
_HAND_OVER = """
UPDATE agentcli.entries SET own = true WHERE n IN (
    SELECT DISTINCT ON (origin) n FROM (
        SELECT copy.origin, copy.n, count(*) OVER (PARTITION BY copy.session_id) AS shared
        FROM agentcli.entries AS gone JOIN agentcli.entries AS copy ON copy.origin = gone.origin AND copy.trashed = 0
        WHERE gone.session_id = %(id)s AND gone.trashed = %(now)s AND gone.own
    ) AS copies ORDER BY origin, shared DESC, n
)
"""
_OUT_OF_TRASH = (
    f"""
INSERT INTO agentcli.sessions ({_SESSION})
SELECT {_SESSION} FROM agentcli.sessions WHERE id = %(id)s AND trashed = %(batch)s
ON CONFLICT (id, trashed) DO UPDATE SET title = excluded.title, last_prompt = excluded.last_prompt
""",  # noqa: S608 - our words
    "DELETE FROM agentcli.sessions WHERE id = %(id)s AND trashed = %(batch)s",
    """
UPDATE agentcli.entries SET trashed = 0, own = NOT EXISTS (
    SELECT 1 FROM agentcli.entries AS other WHERE other.origin = entries.origin AND other.trashed = 0 AND other.own
) WHERE session_id = %(id)s AND trashed = %(batch)s
""",
)


async def remove(db: Connection, session_id: str) -> None:
    names = {"id": session_id, "now": await value(db, "SELECT extract(epoch FROM clock_timestamp())::float8")}
    await db.execute(_INTO_TRASH.format("sessions", "id"), names)
    await db.execute(_INTO_TRASH.format("entries", "session_id"), names)
    await db.execute(_HAND_OVER, names)


async def id_in_trash(db: Connection, session_id: str) -> str:
    """The whole id of the one session in the trash that begins so. Raises `StorageError`."""
    query = "SELECT DISTINCT id FROM agentcli.sessions WHERE trashed > 0 AND id ^@ %s LIMIT 2"
    found = [str(id) for (id,) in await (await db.execute(query, (storable(session_id),))).fetchall()]
    if len(found) != 1:
        raise StorageError(
            f"{'Several sessions begin' if found else 'No session begins'} with {session_id!r} in the trash."
        )
    return found[0]


async def restore(db: Connection, session_id: str) -> None:
    """What was removed last. Raises `StorageError` when the session is there and has entries."""
    if await value(db, LAST_SEQ, session_id):
        raise StorageError(
            f"Session {session_id} has entries: agentcli sessions rm {session_id} makes room for those in the trash."
        )
    newest = "SELECT max(trashed) FROM agentcli.sessions WHERE id = %s AND trashed > 0"
    names = {"id": session_id, "batch": await value(db, newest, session_id)}
    for statement in _OUT_OF_TRASH:
        await db.execute(statement, names)


async def redact(db: Connection, session_id: str, secrets: Secrets) -> int:
    """Strike them out of the session's entries and of all copies of these, and say so in a new entry."""
    query = f"SELECT origin, {ENTRY} FROM agentcli.entries WHERE session_id = %s AND trashed = 0 ORDER BY seq"  # noqa: S608
    rows = await (await db.execute(query, (session_id,))).fetchall()
    changes, total = await asyncio.to_thread(_struck, rows, secrets)
    if not total:
        return 0
    strike = (
        "UPDATE agentcli.entries SET body = %(body)s, checksum = %(checksum)s, "
        "words = array_to_tsvector(%(words)s::text[]) WHERE origin = %(origin)s AND trashed = 0"
    )
    for change in changes:
        await db.execute(strike, change)
    note = Stored((entry_now(new_id(), rows[-1][1], note_of(total)),), len(rows) + 1)
    for row in rows_of(session_id, note):
        await db.execute(INSERT, row)
    await _strike_names(db, [change["origin"] for change in changes], secrets)
    return total


def _struck(rows: Sequence[Sequence[Any]], secrets: Secrets) -> tuple[list[dict[str, Any]], int]:
    changes, total = [], 0
    for origin, *row in rows:
        body, checksum, places = struck_row((*row[:-1], row[-1].encode()), secrets)
        if places:
            words = words_of(entry_of((*row[:-2], checksum, body)))
            changes.append({"origin": origin, "body": body, "checksum": checksum, "words": words})
            total += places
    return changes, total


async def _strike_names(db: Connection, origins: Sequence[int], secrets: Secrets) -> None:
    """A title is the beginning of a prompt, and may end in the middle of a secret: it is made anew."""
    query = (
        "SELECT id, name FROM agentcli.sessions WHERE trashed = 0 AND id IN (SELECT session_id FROM agentcli.entries "
        "WHERE origin = ANY(%s) AND trashed = 0) ORDER BY id FOR UPDATE"
    )
    for id, name in await (await db.execute(query, (origins,))).fetchall():
        entries = await entries_of(db, id)
        texts = (storable(text) for text in (title_of(entries), last_prompt_of(entries), secrets.struck(name)[0]))
        await db.execute(
            "UPDATE agentcli.sessions SET title = %s, last_prompt = %s, name = %s WHERE id = %s AND trashed = 0",
            (*texts, id),
        )
