-- name: search
SELECT sessions.id, title, (entry) FROM entries
JOIN sessions ON sessions.id = session_id AND sessions.trashed = 0 WHERE n IN (
    SELECT n FROM words JOIN entries ON n = words.rowid AND own AND entries.trashed = 0
    JOIN sessions ON sessions.id = session_id AND sessions.trashed = 0
    WHERE words MATCH :words AND cwd = coalesce(:cwd, cwd) AND (of_user)
    ORDER BY entries.time DESC, n DESC LIMIT :limit
) ORDER BY entries.time DESC, n DESC

-- From the file `agents.db`, in which earlier versions kept the sessions of subagents.
-- name: import_subagent_sessions
INSERT INTO sessions (id, trashed, cwd, name, user_id, title, last_prompt, created, updated, used)
SELECT id, trashed, cwd, name, 'subagents of ' || user_id, title, last_prompt, created, updated, used
FROM agents.sessions WHERE id NOT IN (SELECT id FROM main.sessions);
INSERT INTO entries (
    n, origin, own, session_id, trashed, seq, id, parent_id, time, kind, schema_version, checksum, body
)
SELECT n + top, origin + top, own, session_id, trashed, seq, id, parent_id, time, kind, schema_version, checksum, body
FROM agents.entries, (SELECT coalesce(max(n), 0) AS top FROM main.entries)
WHERE session_id NOT IN (SELECT session_id FROM main.entries)

-- The queries for faults: the session, number and id of each entry that has one.
-- name: checksum_faults
SELECT session_id, seq, id FROM entries WHERE checksum <> crc32(CAST(body AS BLOB))

-- name: parent_faults
SELECT session_id, seq, id FROM entries WHERE parent_id NOT IN (SELECT id FROM entries)

-- name: order_faults
SELECT session_id, max(seq), '' FROM entries GROUP BY session_id, trashed HAVING count(*) <> max(seq)

-- `is_there` is 0 for a removed stream, whose row only keeps its last id.
-- name: keep_stream
INSERT INTO streams (id, status, last_id, note, touched, is_there) VALUES (:id, :status, :last_id, :note, :now, 1)
ON CONFLICT (id) DO UPDATE SET status = :status, last_id = :last_id, note = :note, touched = :now, is_there = 1
RETURNING number

-- name: events
SELECT events.id, data FROM events JOIN streams ON number = stream
WHERE streams.id = ? AND events.id > ? ORDER BY events.id LIMIT ?
