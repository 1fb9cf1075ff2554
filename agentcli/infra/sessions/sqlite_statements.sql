-- name: search
SELECT sessions.id, title, (entry) FROM entries
JOIN sessions ON sessions.id = session_id AND sessions.trashed = 0 WHERE n IN (
    SELECT n FROM words JOIN entries ON n = words.rowid AND own AND entries.trashed = 0
    JOIN sessions ON sessions.id = session_id AND sessions.trashed = 0
    WHERE words MATCH :words AND cwd = coalesce(:cwd, cwd) AND (of_user)
    ORDER BY entries.time DESC, n DESC LIMIT :limit
) ORDER BY entries.time DESC, n DESC

-- From the file `agents.db`, in which earlier versions kept the sessions of subagents.
-- name: take_over_agents
INSERT INTO sessions (id, trashed, cwd, name, user_id, title, last_prompt, created, updated, used)
SELECT id, trashed, cwd, name, 'subagents of ' || user_id, title, last_prompt, created, updated, used
FROM agents.sessions WHERE id NOT IN (SELECT id FROM main.sessions);
INSERT INTO entries (
    n, origin, own, session_id, trashed, seq, id, parent_id, time, kind, schema_version, checksum, body
)
SELECT n + top, origin + top, own, session_id, trashed, seq, id, parent_id, time, kind, schema_version, checksum, body
FROM agents.entries, (SELECT coalesce(max(n), 0) AS top FROM main.entries)
WHERE session_id NOT IN (SELECT session_id FROM main.entries)
