-- The open run's call ledger (F3), apart from the session's state: that is written with every boundary, the ledger
-- grows with the run's folded rounds and changes with folds alone.
CREATE TABLE call_ledger (
    session_key INTEGER PRIMARY KEY REFERENCES session (key),
    calls BLOB NOT NULL
) STRICT;
INSERT INTO call_ledger
    SELECT key, CAST(json_extract(CAST(state AS TEXT), '$.open_run.ledger') AS BLOB) FROM session
    WHERE CASE
        WHEN json_valid(CAST(state AS TEXT)) THEN json_array_length(CAST(state AS TEXT), '$.open_run.ledger') > 0
    END;
UPDATE session SET state = CAST(json_remove(CAST(state AS TEXT), '$.open_run.ledger') AS BLOB)
    WHERE key IN (SELECT session_key FROM call_ledger);
