"""Commits: whole or not at all (V10), over the revision they were computed from (W3), answers kept with them (W2)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import RevisionKind, RunOutcome
from foldline.domain.errors import FoldlineError, Reason, RevisionConflict
from foldline.domain.memory import MemoryFilter
from foldline.domain.models import Factor
from foldline.domain.ports import Batch, CallUpdate, Rewrite, Store, Tools
from foldline.domain.rows import ModelRef
from foldline.domain.session import ClosedRun
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.store.conftest import Clock, Database
from tests.contract.store.records import MODEL, Scribe, entry, event, prepared, record, request, row, session

DAY = 24 * 3600.0
_NUMBERS = itertools.count(1)


def test_a_commit_is_there_after_reopening(database: Database) -> None:
    scribe = Scribe.create(database.open())
    scribe.append(2)
    scribe.append(1, pins=((1, True),))
    store = database.reopen()
    assert store.load_session("acme", "s") == scribe.session
    assert store.archive(scribe.key, 0, 10) == [row(1, 1, pinned=True), row(2, 1), row(3, 2)]


def test_rows_keep_every_byte(store: Store) -> None:
    scribe = Scribe.create(store)
    bodies = [b"", b"\x00\xff\x00", b"x" * 3_000_000, "é😀".encode()]
    rows = tuple(row(i + 1, 1, body=body, run_id="r😀", tokens=2**40) for i, body in enumerate(bodies))
    scribe.commit(replace(scribe.session, revision=1, next_offset=5), rows=rows)
    assert store.read_rows(scribe.key, [1, 2, 3, 4]) == list(rows)


def test_rows_come_in_the_order_asked_for_and_missing_ones_are_left_out(store: Store) -> None:
    scribe = Scribe.create(store)
    scribe.append(9)
    assert [r.offset for r in store.read_rows(scribe.key, [9, 2, 3, 77, 1, 0, 2])] == [9, 2, 3, 1, 2]
    assert store.read_rows(scribe.key, []) == []
    assert store.count_rows(scribe.key) == 9


def test_the_archive_pages_by_offset(store: Store) -> None:
    scribe = Scribe.create(store)
    scribe.append(10)
    assert [r.offset for r in store.archive(scribe.key, 3, 4)] == [4, 5, 6, 7]
    assert [r.offset for r in store.archive(scribe.key, 3, 100, through=5)] == [4, 5]
    assert store.archive(scribe.key, 10, 5) == []


def test_a_number_beyond_the_store_is_a_validation_error(store: Store) -> None:
    scribe = Scribe.create(store)
    with pytest.raises(FoldlineError) as refused:
        store.archive(scribe.key, 2**64 - 1, 1)
    assert refused.value.reason == Reason.FIELD_VALIDATION


def test_w3_a_stale_commit_writes_nothing(store: Store) -> None:
    scribe = Scribe.create(store)
    scribe.append(1)
    stale = replace(scribe.session, revision=2, next_offset=3, labels={"stale": "yes"})
    scribe.append(1)
    with pytest.raises(RevisionConflict) as refused:
        store.commit(Batch(1, stale, rows=(row(2, 2),), request=request("q", 1.0), events=(event(),)))
    assert (refused.value.expected, refused.value.actual) == (1, 2)
    assert store.load_session("acme", "s") == scribe.session
    assert store.count_rows(scribe.key) == 2
    assert store.find_request("acme", scribe.key, "q") is None
    assert store.events(scribe.key, 0, 10) == []


def test_v10_a_batch_that_fails_at_its_end_leaves_nothing(store: Store) -> None:
    """The rewrite at a revision that already has one is written last and refused by the store."""
    scribe = Scribe.create(store)
    scribe.append(3)
    scribe.rewrite([3])
    before = store.export_session(scribe.key)
    broken = Rewrite(2, RevisionKind.FOLD, 1, ((4, 4),), "d", 1.0, record("f", [3], 3))
    after = replace(scribe.session, revision=3, next_offset=5)
    with pytest.raises(FoldlineError) as refused:
        store.commit(
            Batch(
                2, after, rows=(row(4, 3),), rewrite=broken, calls=(CallUpdate(4, "c"),), events=(event(),),
                closed_runs=(ClosedRun("r", RunOutcome.COMPLETED),), prepared=prepared("p"), request=request("q", 1.0),
                tools=Tools("t", 1, 1), factor=Factor(MODEL, 1.5), publish=(entry(3),), visible=((1, 3),),
            )
        )  # fmt: skip
    assert refused.value.reason == Reason.INTERNAL
    assert store.export_session(scribe.key) == before
    assert store.find_prepared(scribe.key, "p") is None
    assert store.find_request("acme", scribe.key, "q") is None
    assert store.find_tools(scribe.key, "t") is None
    assert store.factor("acme", MODEL) is None
    assert store.memory_ids(scribe.key, MemoryFilter()) == []
    scribe.append(1)


@pytest.mark.parametrize(
    ("rows", "next_offset", "why"),
    [
        ((row(3, 2), row(3, 2)), 4, "an offset twice in a batch"),
        ((row(4, 2), row(3, 2)), 5, "offsets that descend"),
        ((row(2, 2),), 3, "an offset that is given already"),
        ((row(3, 1),), 4, "a revision that is over"),
        ((row(3, 3),), 4, "a revision to come"),
        ((row(3, 2),), 3, "an offset the session will give again"),
    ],
)
def test_rows_out_of_order_are_refused(store: Store, rows: tuple, next_offset: int, why: str) -> None:
    scribe = Scribe.create(store)
    scribe.append(2)
    after = replace(scribe.session, revision=2, next_offset=next_offset)
    with pytest.raises(FoldlineError) as refused:
        store.commit(Batch(1, after, rows=rows))
    assert refused.value.reason == Reason.INTERNAL, why
    assert store.load_session("acme", "s") == scribe.session
    assert store.count_rows(scribe.key) == 2


def test_one_batch_may_make_several_revisions(store: Store) -> None:
    """An answer and the rows after it come in one call of the host (§3)."""
    scribe = Scribe.create(store)
    after = replace(scribe.session, revision=2, next_offset=4)
    scribe.commit(after, rows=(row(1, 1), row(2, 2), row(3, 2)))
    assert [store.active_offsets(scribe.key, r) for r in (0, 1, 2)] == [[], [1], [1, 2, 3]]


def test_r6_pins_change_without_a_revision(store: Store) -> None:
    scribe = Scribe.create(store)
    scribe.append(3)
    scribe.commit(pins=((1, True), (3, True)))
    scribe.commit(pins=((3, False),))
    assert [r.pinned for r in store.archive(scribe.key, 0, 3)] == [True, False, False]
    assert scribe.session.revision == 1


def test_r3_calls_of_one_id_are_told_apart_by_their_offset(store: Store) -> None:
    scribe = Scribe.create(store)
    scribe.append(4, calls=(CallUpdate(1, "c"), CallUpdate(3, "c"), CallUpdate(3, "d")))
    scribe.append(1, calls=(CallUpdate(3, "c", result_offset=4),))
    assert store.find_calls(scribe.key, "c") == [CallUpdate(1, "c"), CallUpdate(3, "c", result_offset=4)]
    scribe.rewrite([1, 2], calls=(CallUpdate(3, "c", 4, removed_by=3), CallUpdate(3, "d", removed_by=3)))
    assert store.find_calls(scribe.key, "c")[1].removed_by == 3
    scribe.rewrite([1, 2, 3, 4], calls=(CallUpdate(3, "c", 4),))
    assert store.find_calls(scribe.key, "c")[1] == CallUpdate(3, "c", 4)
    assert store.find_calls(scribe.key, "unknown") == []


def test_runs_prepared_requests_and_tools_are_found_by_id(store: Store) -> None:
    scribe, other = Scribe.create(store, "a"), Scribe.create(store, "b")
    run = ClosedRun("r", RunOutcome.CANCELLED, request=(1, 2))
    scribe.commit(closed_runs=(run,), prepared=prepared("p", 7), tools=Tools("t", 12, 34))
    assert store.find_run(scribe.key, "r") == run
    assert store.find_prepared(scribe.key, "p") == prepared("p", 7)
    assert store.find_tools(scribe.key, "t") == Tools("t", 12, 34)
    assert store.find_run(other.key, "r") is None
    assert store.find_prepared(other.key, "p") is None
    assert store.find_tools(other.key, "t") is None


def test_s3_the_json_of_tools_is_kept_beside_them(store: Store) -> None:
    scribe, other = Scribe.create(store, "a"), Scribe.create(store, "b")
    tools = Tools("t", 12, 34)
    scribe.append(1, tools=tools)
    assert store.tools_json(scribe.key, "t") is None
    scribe.append(1, tools=tools, tools_json=b"[1]")
    assert store.find_tools(scribe.key, "t") == Tools("t", 12, 34, kept=True)
    scribe.append(1, tools=tools)
    assert store.tools_json(scribe.key, "t") == b"[1]", "known once, kept"
    assert store.tools_json(other.key, "t") is store.tools_json(scribe.key, "u") is None
    store.delete_session(scribe.key)
    assert store.tools_json(scribe.key, "t") is None


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=st.lists(st.integers(0, 7), max_size=20), grows=st.booleans())
def test_s3_the_json_of_the_newest_tools_is_kept_and_no_more(store: Store, sent: list[int], grows: bool) -> None:
    """Which sets come in which order, and whether rows come with them, changes nothing: each is there as it came."""
    scribe = Scribe.create(store, f"s{next(_NUMBERS)}")
    order: list[int] = []
    for number in sent:
        fields: dict[str, Any] = {"tools": Tools(f"t{number}", 1, 2), "tools_json": b"[%d]" % number}
        if grows:
            scribe.append(1, **fields)
        else:
            scribe.commit(**fields)
        order = [n for n in order if n != number] + [number]
    kept = {n for n in range(8) if store.tools_json(scribe.key, f"t{n}") is not None}
    assert len(kept) == min(len(order), 4)
    assert {n: store.tools_json(scribe.key, f"t{n}") for n in kept} == {n: b"[%d]" % n for n in kept}
    assert kept.issuperset(order[-1:])
    assert kept == set(order[-4:]) or not grows
    assert all(store.find_tools(scribe.key, f"t{n}") == Tools(f"t{n}", 1, 2, kept=n in kept) for n in order)


def test_factors_are_the_tenants(store: Store) -> None:
    mine, theirs = Scribe.create(store, "a"), Scribe.create(store, "b", tenant="other")
    mine.commit(factor=Factor(MODEL, 1.1, 0.02, 3))
    theirs.commit(factor=Factor(MODEL, 0.9))
    mine.commit(factor=Factor(MODEL, 1.2, 0.01, 4))
    assert store.factor("acme", MODEL) == Factor(MODEL, 1.2, 0.01, 4)
    assert store.factor("other", MODEL) == Factor(MODEL, 0.9)
    assert store.factor("acme", ModelRef("openai", "gpt-y")) is None


def test_w2_an_answer_is_kept_with_its_commit(store: Store, clock: Clock) -> None:
    scribe, other = Scribe.create(store, "a"), Scribe.create(store, "b")
    first = request("q", clock.now, b"\x00answer")
    scribe.append(1, request=first)
    assert store.find_request("acme", scribe.key, "q") == first
    assert store.find_request("acme", other.key, "q") is None
    other.append(1, request=request("q", clock.now, b"another"))
    assert store.find_request("acme", scribe.key, "q") == first


def test_w2_requests_of_no_session_are_the_tenants(store: Store, clock: Clock) -> None:
    created = request("q", clock.now, method="CreateSession")
    store.create_session(session("a"), created)
    store.create_session(session("a", tenant="other"), request("q", clock.now, b"theirs"))
    assert store.find_request("acme", 0, "q") == created
    assert store.find_request("other", 0, "q").answer == b"theirs"
    assert store.find_request("nobody", 0, "q") is None


def test_w2_an_id_is_not_taken_by_another_request(store: Store, clock: Clock) -> None:
    scribe = Scribe.create(store)
    scribe.append(1, request=request("q", clock.now, b"first"))
    for other in (
        replace(request("q", clock.now, b"second"), payload=b"another"),
        request("q", clock.now, b"second", method="RecordAnswer"),
    ):
        with pytest.raises(FoldlineError) as refused:
            scribe.append(1, request=other)
        assert refused.value.reason == Reason.REQUEST_ID_REUSED
    assert store.find_request("acme", scribe.key, "q").answer == b"first"
    assert store.count_rows(scribe.key) == 1


def test_w2_the_same_request_may_be_answered_again(store: Store, clock: Clock) -> None:
    """A request that is remembered before its fold, or is measured again, gets the later answer."""
    scribe = Scribe.create(store)
    scribe.append(1, request=request("q", clock.now, b"first"))
    scribe.append(1, request=request("q", clock.now, b"second"))
    assert store.find_request("acme", scribe.key, "q").answer == b"second"


def test_w2_a_request_creates_and_deletes_once(store: Store, clock: Clock) -> None:
    created = request("c", clock.now)
    first = store.create_session(session("x"), created)
    with pytest.raises(FoldlineError) as refused:
        store.create_session(session("y"), created)
    assert refused.value.reason == Reason.REQUEST_ID_REUSED
    assert store.load_session("acme", "y") is None

    with pytest.raises(FoldlineError):
        store.delete_session(first.key, created)
    assert store.load_session("acme", "x") == first
    assert store.policy_of(first.key) == first.policy
    assert store.policy_of(first.key + 1000) == {}
    deleted = request("d", clock.now, method="DeleteSession")
    store.delete_session(first.key, deleted)
    assert store.load_session("acme", "x") is None
    assert store.find_request("acme", 0, "d") == deleted
    assert store.find_request("acme", 0, "c") == created


def test_w2_a_request_is_remembered_for_24_hours(store: Store, clock: Clock) -> None:
    scribe = Scribe.create(store)
    scribe.append(1, request=request("q", clock.now, b"first"))
    clock.now += DAY - 1
    assert store.find_request("acme", scribe.key, "q") is not None
    clock.now += 1
    assert store.find_request("acme", scribe.key, "q") is None
    scribe.append(1, request=request("q", clock.now, b"second"))
    assert store.find_request("acme", scribe.key, "q").answer == b"second"


def test_w2_purging_removes_what_is_over_24_hours_old_and_no_more(store: Store, clock: Clock) -> None:
    scribe = Scribe.create(store)
    for index in range(1200):
        scribe.commit(request=request(f"old-{index}", clock.now), prepared=prepared(f"old-{index}"))
    clock.now += DAY
    scribe.commit(request=request("new", clock.now), prepared=prepared("new"))
    scribe.commit(request=request("old-7", clock.now, b"again"))
    store.purge(clock.now)
    clock.now -= DAY
    kept = [i for i in range(1200) if store.find_request("acme", scribe.key, f"old-{i}")]
    assert kept == [7]
    assert store.find_request("acme", scribe.key, "new") is not None
    assert not any(store.find_prepared(scribe.key, f"old-{i}") for i in range(1200))
    assert store.find_prepared(scribe.key, "new") is not None
