-- The tables of sessions in SQLite, and those of event streams, which a file of version 1 has already.
--
-- The entries of a session form a tree through parent_id; the newest one is the head. A fork has copies of the entries
-- it begins with: `origin` is the `n` of the original entry, and of all copies outside the trash exactly one is `own`,
-- the one that totals and searches use. `trashed` is 0, or how many times a session of that id has been moved to the
-- trash. A result's id is its call's id, which a model may use again. `used` grows with each use of any session, and
-- unlike `updated` does not depend on the clock. `checksum` is the CRC-32 of the body's bytes, NULL in old rows.
-- `changes_of_files` is for blame. `words` is the search index, which keeps no text: its rowid is the entry's `n`.
-- `streams` and `events` are for the readers of servers; the row of a removed stream stays, with its last id.
CREATE TABLE sessions (
    id TEXT NOT NULL,
    trashed INTEGER NOT NULL DEFAULT 0,
    cwd TEXT NOT NULL,
    name TEXT NOT NULL,
    user_id TEXT NOT NULL,
    title TEXT NOT NULL DEFAULT '',
    last_prompt TEXT NOT NULL DEFAULT '',
    created REAL NOT NULL,
    updated REAL NOT NULL,
    used INTEGER NOT NULL,
    PRIMARY KEY (id, trashed)
) STRICT;
CREATE INDEX sessions_by_use ON sessions (used, cwd);
CREATE TABLE entries (
    n INTEGER PRIMARY KEY,
    origin INTEGER NOT NULL,
    own INTEGER NOT NULL,
    session_id TEXT NOT NULL,
    trashed INTEGER NOT NULL DEFAULT 0,
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    parent_id TEXT,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    schema_version INTEGER NOT NULL,
    checksum INTEGER,
    body TEXT NOT NULL,
    UNIQUE (session_id, trashed, seq),
    FOREIGN KEY (session_id, trashed) REFERENCES sessions (id, trashed) ON UPDATE CASCADE
) STRICT;
CREATE INDEX entries_by_origin ON entries (origin);
CREATE INDEX changes_of_files ON entries (time) WHERE kind IN ('files_changed', 'files_restored');
CREATE VIRTUAL TABLE words USING fts5(
    text, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 0'
);
CREATE TABLE IF NOT EXISTS streams (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    last_id INTEGER NOT NULL,
    note TEXT NOT NULL,
    touched REAL NOT NULL,
    is_there INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS events (
    stream INTEGER NOT NULL REFERENCES streams (number),
    id INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (stream, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX streams_by_time ON streams (touched) WHERE is_there;
