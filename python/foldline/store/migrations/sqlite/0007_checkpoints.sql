-- What agents saved (K3), newest last. One that a fork takes along is a row of its own: it is small.
CREATE TABLE checkpoint (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_key INTEGER NOT NULL REFERENCES session (key),
    checkpoint_id TEXT NOT NULL,
    revision INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX checkpoint_by_id ON checkpoint (session_key, checkpoint_id);
CREATE INDEX checkpoint_by_session ON checkpoint (session_key, id);
