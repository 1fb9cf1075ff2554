"""Reads what the stored sessions used."""

from __future__ import annotations

import apsw

from agentcli.agent.accounting.usage import UsageCollector
from agentcli.infra.sessions.reading import read_entry

_ENTRIES = """
SELECT entries.session_id, sessions.user_id, entries.id, parent_id, time, schema_version, checksum, CAST(body AS BLOB)
FROM sessions JOIN entries ON entries.session_id = sessions.id
WHERE sessions.updated >= :since AND entries.time >= :since AND (:session = '' OR sessions.id = :session)
    AND sessions.user_id = coalesce(:user_id, sessions.user_id)
    AND kind IN ('user', 'assistant', 'tool_result', 'paid', 'compaction')
ORDER BY entries.session_id, seq
"""


def read_usage(
    db: apsw.Connection, *, since: float = 0.0, session_id: str = "", user_id: str | None = None
) -> UsageCollector:
    """What was stored since a time (seconds since 1970), of one session or of all. Of a fork only what is its own."""
    found = UsageCollector()
    for session, user, *row in db.execute(_ENTRIES, {"since": since, "session": session_id, "user_id": user_id}):
        found.add(session, read_entry(row), user_id=user)
    return found
