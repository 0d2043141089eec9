from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from foldline.memory import MemoryService
from foldline.store import SqliteStore

from tests.unit.memory.scopes import words


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "foldline.db", synchronous="NORMAL")
    yield store
    store.close()


@pytest.fixture
def memory(store: SqliteStore) -> MemoryService:
    """Memory that ranks by words alone."""
    return MemoryService(store, None, 1 << 20, words)
