-- The tables of sessions in Postgres.
--
-- A fork has copies of the entries it begins with: `origin` is the `n` of the original entry, and of all copies outside
-- the trash exactly one is `own`, the one that totals and searches use. `trashed` is 0, or a number that grows each
-- time a session of that id is moved to the trash. `used` grows with each use of any session, whatever clocks show.
-- `words` is the search index.
CREATE SCHEMA IF NOT EXISTS agentcli;
CREATE TABLE agentcli.version (version integer NOT NULL);
INSERT INTO agentcli.version VALUES (1);
CREATE SEQUENCE agentcli.uses;
CREATE TABLE agentcli.sessions (
    id text COLLATE "C" NOT NULL,
    trashed double precision NOT NULL DEFAULT 0,
    cwd text NOT NULL,
    name text NOT NULL,
    user_id text NOT NULL,
    title text NOT NULL DEFAULT '',
    last_prompt text NOT NULL DEFAULT '',
    created double precision NOT NULL,
    updated double precision NOT NULL,
    used bigint NOT NULL DEFAULT nextval('agentcli.uses'),
    PRIMARY KEY (id, trashed)
);
CREATE INDEX sessions_by_use ON agentcli.sessions (used) WHERE trashed = 0;
CREATE INDEX sessions_of_users ON agentcli.sessions (user_id, used) WHERE trashed = 0;
CREATE INDEX sessions_by_name ON agentcli.sessions (name) WHERE name <> '';
CREATE SEQUENCE agentcli.entry_numbers;
CREATE TABLE agentcli.entries (
    n bigint PRIMARY KEY,
    origin bigint NOT NULL,
    own boolean NOT NULL,
    trashed double precision NOT NULL DEFAULT 0,
    session_id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    id text NOT NULL,
    parent_id text,
    time double precision NOT NULL,
    kind text NOT NULL,
    schema_version integer NOT NULL,
    body text NOT NULL,
    checksum bigint NOT NULL,
    words tsvector NOT NULL,
    UNIQUE (session_id, trashed, seq)
);
CREATE INDEX entries_by_origin ON agentcli.entries (origin);
CREATE INDEX changes_of_files ON agentcli.entries (time) WHERE kind IN ('files_changed', 'files_restored');
CREATE INDEX words_of_entries ON agentcli.entries USING gin (words) WHERE own AND trashed = 0;
CREATE TABLE agentcli.leases (
    session_id text COLLATE "C" PRIMARY KEY,
    owner text NOT NULL,
    epoch bigint NOT NULL,
    address text NOT NULL,
    expires timestamptz NOT NULL,
    wanted boolean NOT NULL
);
