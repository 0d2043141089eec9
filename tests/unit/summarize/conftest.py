from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.providers import FakeProvider


@pytest.fixture
def fake() -> Iterator[FakeProvider]:
    """A provider of every API that summarizes what it is sent."""
    with FakeProvider() as provider:
        yield provider
