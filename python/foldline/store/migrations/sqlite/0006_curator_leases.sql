-- Tasks that a host writes a summary for (S6, F12), and how long they are its own. None outlives the process that handed
-- it out: what is left is removed at start.
CREATE TABLE curator_lease (
    task_id TEXT PRIMARY KEY,
    session_key INTEGER NOT NULL,
    fold_id TEXT NOT NULL,
    curator_id TEXT NOT NULL,
    curator TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    time REAL NOT NULL,
    expire REAL NOT NULL
) STRICT;
CREATE INDEX curator_lease_by_session ON curator_lease (session_key);
