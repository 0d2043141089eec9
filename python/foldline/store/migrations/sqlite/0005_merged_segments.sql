-- Segments of the lexical index are merged as they become many. A merged one has a number of its own below 0; what its
-- postings count from is `first`, the oldest revision among those that published its entries `since`.
ALTER TABLE memory_segment ADD COLUMN first INTEGER NOT NULL DEFAULT 0;
ALTER TABLE memory_segment ADD COLUMN since INTEGER NOT NULL DEFAULT 0;
UPDATE memory_segment SET first = segment, since = revision;
CREATE INDEX memory_segment_small ON memory_segment (session_key) WHERE entries < 1024;

-- The revision that published an entry first: a fork takes those up to its own.
ALTER TABLE memory_entry ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
UPDATE memory_entry SET revision = coalesce((
    SELECT s.revision FROM memory_segment s
    WHERE s.session_key = memory_entry.session_key AND s.segment <= coalesce(memory_entry.origin, memory_entry.id)
    ORDER BY s.segment DESC LIMIT 1
), 0);

-- Segments that no scope is searched by, not yet or no more; their postings go a few at a time.
CREATE TABLE memory_garbage (
    segment INTEGER PRIMARY KEY,
    session_key INTEGER NOT NULL
) STRICT;
CREATE INDEX memory_garbage_by_session ON memory_garbage (session_key);
