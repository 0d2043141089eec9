-- Folds of transcripts that hosts keep (H3). What is staged stands in one row, so that a commit or a crash moves all of
-- it or nothing; memory and rows stand apart, because dropping a scope takes the memory alone. Afterwards the row stays
-- without them: a commit may be repeated, and summaries are known by their digest (H2).
CREATE TABLE projection (
    id INTEGER PRIMARY KEY,
    session_key INTEGER NOT NULL REFERENCES session (key),
    projection_id TEXT NOT NULL,
    fold_id TEXT NOT NULL,
    state TEXT NOT NULL,
    expire REAL NOT NULL,
    digest TEXT NOT NULL,
    text_digest TEXT NOT NULL,
    summary_offset INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    memory BLOB,
    staged BLOB
) STRICT;
CREATE UNIQUE INDEX projection_by_id ON projection (session_key, projection_id);
CREATE INDEX projection_by_digest ON projection (session_key, digest);
CREATE INDEX projection_by_text ON projection (session_key, text_digest);
CREATE UNIQUE INDEX projection_staged ON projection (session_key) WHERE state = 'STAGED';

-- Which offset a host's row has in the archive.
CREATE TABLE host_row (
    session_key INTEGER NOT NULL REFERENCES session (key),
    row_id TEXT NOT NULL,
    part INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    PRIMARY KEY (session_key, row_id, part)
) STRICT, WITHOUT ROWID;
