-- The tools' JSON as it came (S3, N1), of the newest that a session's host sent, where its policy asks for it: NULL of all
-- others. "kept" is the revision at which it was written.
ALTER TABLE tools ADD COLUMN json BLOB;
ALTER TABLE tools ADD COLUMN kept INTEGER;
