"""Types, errors and revisions; imports nothing else of Foldline."""
