-- Bodies stand in plain rowid tables with a unique index beside them, and last in their row: what is read often is
-- found without walking over what is large.

CREATE TABLE session (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    session_id TEXT NOT NULL,
    deleting INTEGER NOT NULL DEFAULT 0,
    memory_dropped INTEGER NOT NULL DEFAULT 0,
    last_event INTEGER NOT NULL DEFAULT 0,
    next_offset INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    state BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX session_by_id ON session (tenant, session_id) WHERE deleting = 0;

CREATE TABLE archive_row (
    id INTEGER PRIMARY KEY,
    session_key INTEGER NOT NULL REFERENCES session (key),
    offset INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    pinned INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    place INTEGER,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX archive_row_by_offset ON archive_row (session_key, offset);
CREATE INDEX archive_row_placed ON archive_row (session_key, offset, place) WHERE place IS NOT NULL;

CREATE TABLE rewrite (
    id INTEGER PRIMARY KEY,
    session_key INTEGER NOT NULL REFERENCES session (key),
    revision INTEGER NOT NULL,
    kind TEXT NOT NULL,
    parent_revision INTEGER NOT NULL,
    digest TEXT NOT NULL,
    time REAL NOT NULL,
    note TEXT NOT NULL,
    active BLOB NOT NULL,
    record BLOB
) STRICT;
CREATE UNIQUE INDEX rewrite_by_revision ON rewrite (session_key, revision);

CREATE TABLE call (
    session_key INTEGER NOT NULL REFERENCES session (key),
    call_id TEXT NOT NULL,
    offset INTEGER NOT NULL,
    result_offset INTEGER,
    removed_by INTEGER,
    PRIMARY KEY (session_key, call_id, offset)
) STRICT, WITHOUT ROWID;

CREATE TABLE closed_run (
    session_key INTEGER NOT NULL REFERENCES session (key),
    run_id TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (session_key, run_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE prepared (
    id INTEGER PRIMARY KEY,
    session_key INTEGER NOT NULL REFERENCES session (key),
    prepare_id TEXT NOT NULL,
    time REAL NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX prepared_by_id ON prepared (session_key, prepare_id);

-- session_key 0: requests of a tenant that concern no session yet; only these carry the tenant.
CREATE TABLE request (
    id INTEGER PRIMARY KEY,
    session_key INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    request_id TEXT NOT NULL,
    method TEXT NOT NULL,
    time REAL NOT NULL,
    payload BLOB NOT NULL,
    answer BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX request_by_id ON request (session_key, tenant, request_id);

CREATE TABLE tools (
    session_key INTEGER NOT NULL REFERENCES session (key),
    digest TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (session_key, digest)
) STRICT, WITHOUT ROWID;

CREATE TABLE factor (
    tenant TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (tenant, provider, model)
) STRICT, WITHOUT ROWID;

CREATE TABLE event (
    id INTEGER PRIMARY KEY,
    session_key INTEGER NOT NULL REFERENCES session (key),
    seq INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX event_by_seq ON event (session_key, seq);

-- Folds that started and have no terminal event yet: few, so that a start reads them all at once.
CREATE TABLE open_fold (
    session_key INTEGER NOT NULL REFERENCES session (key),
    fold_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (session_key, fold_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE embedder (
    id INTEGER PRIMARY KEY,
    identity TEXT NOT NULL UNIQUE
) STRICT;

-- embedder 0: no vector yet. Text and vector stand apart, so that counting and filtering touch neither.
CREATE TABLE memory_entry (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_key INTEGER NOT NULL REFERENCES session (key),
    offset INTEGER NOT NULL,
    chunk INTEGER NOT NULL,
    visible INTEGER NOT NULL,
    embedder INTEGER NOT NULL DEFAULT 0,
    kind TEXT NOT NULL,
    role TEXT NOT NULL,
    byte_start INTEGER NOT NULL,
    byte_end INTEGER NOT NULL,
    length INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    create_time TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX memory_entry_by_chunk ON memory_entry (session_key, offset, chunk);
CREATE INDEX memory_entry_visible ON memory_entry (session_key, offset, chunk, embedder) WHERE visible = 1;
CREATE INDEX memory_entry_hidden ON memory_entry (session_key, id, length) WHERE visible = 0;
CREATE INDEX memory_entry_by_embedder ON memory_entry (embedder, id);

CREATE TABLE memory_text (
    entry_id INTEGER PRIMARY KEY REFERENCES memory_entry (id),
    terms TEXT NOT NULL,
    context TEXT NOT NULL,
    text TEXT NOT NULL
) STRICT;

CREATE TABLE memory_vector (
    entry_id INTEGER PRIMARY KEY REFERENCES memory_entry (id),
    vector BLOB NOT NULL
) STRICT;

-- The lexical index: entries published together are a segment, named by the first of their consecutive ids.
CREATE TABLE memory_segment (
    session_key INTEGER NOT NULL REFERENCES session (key),
    segment INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    length INTEGER NOT NULL,
    PRIMARY KEY (session_key, segment)
) STRICT, WITHOUT ROWID;

CREATE TABLE memory_posting (
    session_key INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    stem TEXT NOT NULL,
    postings BLOB NOT NULL,
    PRIMARY KEY (session_key, segment, stem)
) STRICT, WITHOUT ROWID;
