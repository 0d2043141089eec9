"""Durable state behind ``domain.ports.Store``. SQLite keeps it in one file of the data directory."""

from foldline.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
