-- What is known of models' own compaction (N3): of a server's providers, of no session.
CREATE TABLE native_capability (
    provider TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    model TEXT NOT NULL,
    protocol TEXT NOT NULL,
    there INTEGER NOT NULL,
    reason TEXT NOT NULL,
    time REAL NOT NULL,
    PRIMARY KEY (provider, endpoint, model, protocol)
) STRICT;
