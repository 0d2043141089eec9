"""What is known of models' own compaction (N3): by provider, endpoint, model and protocol; of no session."""

from __future__ import annotations

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import Format
from foldline.domain.native import Capability, NativeRoute
from foldline.domain.ports import Store
from foldline.domain.rows import ModelRef

from tests.contract.store.conftest import NOON, Database

ROUTE = NativeRoute(ModelRef("openai", "gpt-x"), "https://one.example/v1", "responses/compact", Format.OPENAI_RESPONSES)
OTHERS = [
    replace(ROUTE, model=ModelRef("openai", "gpt-y")),
    replace(ROUTE, model=ModelRef("azure", "gpt-x")),
    replace(ROUTE, endpoint="https://two.example/v1"),
    replace(ROUTE, protocol="compact-2026-01-12"),
]


def test_n3_the_last_that_was_learned_holds(store: Store) -> None:
    assert store.native_capability(ROUTE) is None
    store.put_native_capability(ROUTE, Capability(True, "", NOON))
    assert store.native_capability(ROUTE) == Capability(True, "", NOON)
    gone = Capability(False, "answered 404", NOON + 60)
    store.put_native_capability(ROUTE, gone)
    assert store.native_capability(ROUTE) == gone


@pytest.mark.parametrize("other", OTHERS)
def test_n3_every_part_of_the_way_tells_it_apart(store: Store, other: NativeRoute) -> None:
    store.put_native_capability(ROUTE, Capability(False, "answered 404", NOON))
    assert store.native_capability(other) is None


def test_n3_it_outlives_a_restart(database: Database) -> None:
    found = Capability(False, "gave 0 compaction items", NOON)
    database.open().put_native_capability(ROUTE, found)
    assert database.reopen().native_capability(ROUTE) == found
