"""Every test here runs against every store: a store is correct when it passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from foldline.domain.ports import Store
from foldline.store import SqliteStore

NOON = 1_700_000_000.0


@dataclass
class Clock:
    now: float = NOON

    def __call__(self) -> float:
        return self.now


@dataclass
class Database:
    """One place that a store keeps its data in: opened, closed and opened again at will."""

    open_store: Callable[[Clock], Store]
    clock: Clock = field(default_factory=Clock)
    _open: list[Store] = field(default_factory=list)

    def open(self) -> Store:
        store = self.open_store(self.clock)
        self._open.append(store)
        return store

    def reopen(self) -> Store:
        self.close()
        return self.open()

    def close(self) -> None:
        while self._open:
            self._open.pop().close()


def _sqlite(directory: Path) -> Callable[[Clock], Store]:
    return lambda clock: SqliteStore(directory / "foldline.db", synchronous="NORMAL", clock=clock)


FACTORIES: dict[str, Callable[[Path], Callable[[Clock], Store]]] = {"sqlite": _sqlite}


@pytest.fixture(params=sorted(FACTORIES))
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    database = Database(FACTORIES[request.param](tmp_path))
    yield database
    database.close()


@pytest.fixture
def store(database: Database) -> Store:
    return database.open()


@pytest.fixture
def clock(database: Database) -> Clock:
    return database.clock
