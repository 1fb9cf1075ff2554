-- Upgrades version 4, where a fork had no copies, but shared the entries of `forked_from` up to the number `forked_at`.
-- The line in brackets is replaced with the statements for the present tables.
ALTER TABLE sessions RENAME TO old_sessions;
ALTER TABLE entries RENAME TO old_entries;
DROP INDEX sessions_by_use;
DROP INDEX changes_of_files;
DROP TABLE words;
DROP TABLE indexed;
-- (sqlite_tables.sql)
INSERT INTO sessions (id, cwd, name, user_id, title, created, updated, used)
SELECT id, cwd, name, user_id, title, created, updated, used FROM old_sessions;
CREATE TEMP TABLE numbers AS SELECT session_id, seq, row_number() OVER (ORDER BY time, seq) AS n FROM old_entries;
CREATE UNIQUE INDEX temp.places ON numbers (session_id, seq);
CREATE TEMP TABLE parts AS WITH RECURSIVE parts (session_id, source, until, depth) AS (
    SELECT id, id, 9223372036854775807, 0 FROM old_sessions UNION ALL
    SELECT session_id, forked_from, forked_at, depth + 1 FROM parts JOIN old_sessions ON id = source
    WHERE forked_from IS NOT NULL AND depth < 1000
) SELECT * FROM parts;
INSERT INTO entries (n, origin, own, session_id, seq, id, parent_id, time, kind, schema_version, checksum, body)
SELECT CASE depth WHEN 0 THEN n END, n, depth = 0, parts.session_id,
    row_number() OVER (PARTITION BY parts.session_id ORDER BY depth DESC, old.seq),
    old.id, parent_id, time, kind, schema_version, checksum, body
FROM parts JOIN old_entries AS old ON old.session_id = source AND old.seq <= until
JOIN numbers ON numbers.session_id = old.session_id AND numbers.seq = old.seq ORDER BY depth > 0, n;
DROP TABLE parts;
DROP TABLE numbers;
DROP TABLE old_entries;
DROP TABLE old_sessions;
UPDATE sessions SET last_prompt = coalesce((
    SELECT prompt FROM (SELECT seq, in_short(schema_version, body) AS prompt FROM entries
    WHERE session_id = sessions.id AND kind = 'user') WHERE prompt <> '' ORDER BY seq DESC LIMIT 1
), '');
