-- A fork has rows and entries of its own, without what is large: that stays with the row or entry it was taken from,
-- its origin (X3). NULL: it has its own. An origin that its session gives up goes over to one of the forks whole, so that
-- its id, by which memory knows an entry, lasts as long as anybody has it.

ALTER TABLE archive_row ADD COLUMN origin INTEGER REFERENCES archive_row (id);
CREATE INDEX archive_row_by_origin ON archive_row (origin) WHERE origin IS NOT NULL;

ALTER TABLE memory_entry ADD COLUMN origin INTEGER REFERENCES memory_entry (id);
CREATE INDEX memory_entry_by_origin ON memory_entry (origin) WHERE origin IS NOT NULL;
DROP INDEX memory_entry_visible;
CREATE INDEX memory_entry_visible ON memory_entry (session_key, offset, chunk, embedder, origin) WHERE visible = 1;
DROP INDEX memory_entry_hidden;
CREATE INDEX memory_entry_hidden ON memory_entry (session_key, id, origin, length) WHERE visible = 0;

-- The revision that published a segment: a fork takes whole segments, up to its own.
ALTER TABLE memory_segment ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
UPDATE memory_segment SET revision = coalesce((
    SELECT min(r.revision)
    FROM memory_entry e
    JOIN rewrite r ON r.session_key = e.session_key AND r.record IS NOT NULL
    JOIN json_each(CAST(r.record AS TEXT), '$.discarded') d
    ON e.offset BETWEEN json_extract(d.value, '$[0]') AND json_extract(d.value, '$[1]')
    WHERE e.id = memory_segment.segment
), 0);
CREATE INDEX memory_segment_by_number ON memory_segment (segment);

CREATE TABLE shared_posting (
    segment INTEGER NOT NULL,
    stem TEXT NOT NULL,
    postings BLOB NOT NULL,
    PRIMARY KEY (segment, stem)
) STRICT, WITHOUT ROWID;
INSERT INTO shared_posting SELECT segment, stem, postings FROM memory_posting;
DROP TABLE memory_posting;
ALTER TABLE shared_posting RENAME TO memory_posting;
