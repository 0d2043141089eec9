"""One server a module; every test has sessions of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from tests.support.server import Client, running_server

WINDOW = 4_000
"""Window of the model ``small``: T is 3 200 tokens, the target 1 600."""

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("server")
    catalog = folder / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": WINDOW, "type": "openai", "encoding": "o200k_base"}}))
    with running_server(folder, {"catalog": str(catalog)}) as client:
        yield client


@pytest.fixture
def name() -> str:
    """An unused session id."""
    return f"session-{next(_numbers)}"
