"""The SQLite store: one writer with group commit, readers beside it, WAL."""
