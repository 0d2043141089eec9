-- What the event log says of a session's memory; empty for whole (M8, M9).
ALTER TABLE session ADD COLUMN memory_told TEXT NOT NULL DEFAULT '';
CREATE INDEX session_told ON session (key) WHERE memory_told <> '';

-- Entries that could not be embedded: few, and told of by number.
CREATE INDEX memory_vector_none ON memory_vector (entry_id) WHERE length(vector) = 0;
