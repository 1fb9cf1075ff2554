-- Whatever the planner prefers, the index is used once, and only the texts of fetched rows are read, at the end.
-- name: search
WITH hits AS MATERIALIZED (
    SELECT n, time, session_id FROM entries WHERE own AND trashed = 0 AND words @@ :query::tsquery
)
SELECT sessions.id, title, (entry) FROM (
    SELECT hits.n, sessions.id, title FROM hits JOIN sessions ON id = session_id AND trashed = 0
    WHERE cwd = coalesce(:cwd, cwd) AND (of_user) ORDER BY hits.time DESC, hits.n DESC
) AS sessions CROSS JOIN LATERAL (SELECT * FROM entries WHERE n = sessions.n OFFSET 0) AS entries

-- name: take_lease
INSERT INTO agentcli.leases AS lease (session_id, owner, epoch, address, expires, wanted)
VALUES (%s, %s, 1, %s, clock_timestamp() + interval '4 seconds', false)
ON CONFLICT (session_id) DO UPDATE SET
    owner = excluded.owner, epoch = lease.epoch + 1, address = excluded.address, wanted = false,
    expires = clock_timestamp() + interval '4 seconds'  -- from now: `excluded` may have waited for the row
WHERE lease.expires < clock_timestamp()
RETURNING epoch

-- A locked row can be skipped, because a transaction of its owner uses it, so that no other program can take it now.
-- name: renew_leases
WITH mine AS (
    SELECT session_id FROM agentcli.leases WHERE owner = %(owner)s AND session_id = ANY(%(ids)s)
    FOR NO KEY UPDATE SKIP LOCKED
), renewed AS (
    UPDATE agentcli.leases SET expires = clock_timestamp() + interval '4 seconds'
    WHERE session_id IN (SELECT session_id FROM mine)
)
SELECT session_id, epoch, wanted FROM agentcli.leases WHERE owner = %(owner)s AND session_id = ANY(%(ids)s)

-- name: want_lease
UPDATE agentcli.leases SET wanted = %(wanted)s WHERE session_id = %(id)s AND wanted IS DISTINCT FROM %(wanted)s

-- The row stays, so that no epoch is used twice.
-- name: release_lease
UPDATE agentcli.leases SET owner = '', address = '', expires = '-infinity', wanted = false
WHERE session_id = %s AND owner = %s AND epoch = %s
