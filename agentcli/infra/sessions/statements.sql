-- The statements that are the same in SQLite and Postgres. The columns for `read_entry` replace `(entry)`, and the
-- condition `OF_USER` replaces `(of_user)`: see tables.py.

-- name: touch
UPDATE sessions SET updated = :now, used = (next_use), last_prompt = coalesce(nullif(:last_prompt, ''), last_prompt),
    title = CASE WHEN title = '' THEN :title ELSE title END
WHERE id = :id AND trashed = 0

-- name: infos
SELECT id, cwd, title, created, updated,
    (SELECT coalesce(max(seq), 0) FROM entries WHERE session_id = sessions.id AND entries.trashed = 0),
    name, last_prompt, user_id
FROM sessions WHERE trashed = 0

-- name: used
SELECT session_id, user_id, (entry) FROM entries
JOIN sessions ON sessions.id = session_id AND sessions.trashed = 0
WHERE own AND entries.trashed = 0 AND updated >= :since AND entries.time >= :since
    AND session_id = coalesce(nullif(:session, ''), session_id) AND ((of_user) OR session_id = :session)
    AND kind IN ('user', 'assistant', 'tool_result', 'paid', 'compaction', 'skill_activated') ORDER BY session_id, seq

-- name: file_changes
SELECT session_id, (entry) FROM entries
WHERE kind IN ('files_changed', 'files_restored') AND own AND trashed = 0
    AND session_id IN (SELECT id FROM sessions WHERE user_id NOT LIKE 'subagents of %') ORDER BY time, n

-- The fork that shares most entries of a removed session gets them as `own`; it has copies of all that others share.
-- name: hand_over
UPDATE entries SET own = true WHERE trashed = 0 AND session_id = (
    SELECT copy.session_id FROM entries AS gone JOIN entries AS copy ON copy.origin = gone.origin AND copy.trashed = 0
    WHERE gone.session_id = :id AND gone.trashed = :batch AND gone.own
    GROUP BY copy.session_id ORDER BY count(*) DESC, min(copy.n) LIMIT 1
) AND origin IN (SELECT origin FROM entries WHERE session_id = :id AND trashed = :batch AND own)

-- name: restore_own_entries
UPDATE entries SET own = NOT EXISTS (
    SELECT 1 FROM entries AS other
    WHERE other.origin = entries.origin AND other.trashed = 0 AND other.own AND other.n <> entries.n
) WHERE session_id = :id AND trashed = 0

-- The entries of a session and its subagents with all their copies, and everything in the trash.
-- name: affected
SELECT n, session_id, trashed, (entry) FROM entries WHERE trashed > 0 OR origin IN (
    SELECT origin FROM entries
    WHERE session_id IN (SELECT id FROM sessions WHERE id = :id OR user_id = :agents) AND trashed = 0
)
