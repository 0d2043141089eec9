"""§1: what each word means, by the list alone where that decides it, else as a host sees it."""

from __future__ import annotations

import pytest
from foldline.domain.enums import RowKind
from foldline.engine.structure import analyze
from foldline.v1 import compaction_pb2, policy_pb2, session_service_pb2

from tests.decisions.script import Script, row
from tests.decisions.table import marks
from tests.notation import snapshot
from tests.support.requests import user
from tests.support.server import Client, refused

UNITS = [
    # (rule, case, transcript, units of more than one row)
    ("§1 unit", "a call with its result", "U A(c1) R(c1)", [(2, 3)]),
    ("§1 unit", "a batch is one", "U A(c1,c2) R(c1) R(c2)", [(2, 3, 4)]),
    ("§1 unit", "rows between call and result are no part", "A(c1) U R(c1)", [(1, 3)]),
    ("§1 unit", "a late result is alone", "U A(c1) U R(c1)~", []),
    ("R3", "an id used twice answers its newest call", "A(c1) R(c1) A(c1) R(c1)", [(1, 2), (3, 4)]),
    ("§1 unit", "interim and final result", "A(c1) R(c1)? R(c1)", [(1, 2, 3)]),
    ("§1 unit", "injected context goes with the user row behind it", "I U", [(1, 2)]),
    ("§1 unit", "all injected rows before a user row", "I I U", [(1, 2, 3)]),
    ("§1 unit", "injected context goes forward, not back", "U I U", [(2, 3)]),
    ("§2", "without a user row behind it, with the request's last row", "U I A", [(1, 2)]),
    ("§2", "a notice can be that row", "N I A", [(1, 2)]),
    ("§2", "a notice between does not part them", "I N U", [(1, 3)]),
    ("§2", "system rows do not break a request", "I S U", [(1, 3)]),
    ("§2", "an answer does", "I A U", []),
    ("§2", "injected rows alone hold together", "A I I A", [(2, 3)]),
    ("§1 unit", "rows joined by a paused server tool", "U A@r1^ A@r1", [(2, 3)]),
    ("§1 unit", "also over more pauses", "U A@r1^ A@r1^ A@r1", [(2, 3, 4)]),
    ("§1 unit", "a pause joins rows of one run only", "A@r1^ A@r2", []),
    ("§1 unit", "what was sent since answers anew", "A@r1^ U@r1 A@r1", []),
    ("§1 unit", "what arrived meanwhile does not part them", "A@r1^ U@r1 A@r1>", [(1, 3)]),
    ("§1 unit", "the paused row's own results do not part them", "A(c1)@r1^ R(c1)@r1 A@r1", [(1, 2, 3)]),
    ("§1 unit", "calls on both sides of a pause", "A(c1)@r1^ R(c1)@r1 A(c2)@r1 R(c2)@r1", [(1, 2, 3, 4)]),
]


@pytest.mark.parametrize(("words", "units"), marks(UNITS))
def test_units(words: str, units: list[tuple[int, ...]]) -> None:
    found = analyze(snapshot(words))
    assert [u.offsets for u in found.units if len(u.offsets) > 1] == units
    assert sorted(o for u in found.units for o in u.offsets) == list(range(1, len(words.split()) + 1))


TURNS = [
    # (rule, case, transcript, first offsets of the turns)
    ("§1 turn", "each user row starts one", "U A U A", [1, 3]),
    ("§1 turn", "rows before the first start are turn 0", "S A U A", [1, 3]),
    ("§1 turn", "injected rows just before belong to it", "U A I I U A", [1, 3]),
    ("§1 turn", "notices before a user row do not", "U A N U A", [1, 4]),
    ("§1 turn", "a request that notices opened", "U@r1 A@r1 N@r2 A@r2", [1, 3]),
    ("§1 turn", "a notice inside a run does not", "U@r1 A(c1)@r1 R(c1)@r1 N@r1 A@r1", [1]),
    ("§1 turn", "a notice of no run opens the run that answered it", "U@r1 A@r1 N A@r2", [1, 3]),
    ("§1 turn", "a late result can open a run", "U@r1 A(c1)@r1 R(c1)@r1~ A@r2", [1, 3]),
    ("§1 turn", "a continued run starts none", "U@r1 A(c1)@r1 R(c1)@r1 A@r2", [1]),
    ("§1 turn", "rows of an import without runs", "U A N A", [1]),
    ("§1 turn", "a start inside a batch moves behind it", "U A(c1) U R(c1) A U", [1, 5, 6]),
    ("§1 turn", "behind it there may be nothing", "U A(c1) U R(c1)", [1]),
    ("§1 turn", "two starts inside one batch are one", "U A(c1) U U R(c1) A", [1, 6]),
    ("§1 turn", "batches that overlap", "A(c1) U A(c2) R(c1) R(c2) A", [1, 6]),
    ("§1 turn", "each user row of a request", "U U A", [1, 2]),
]


@pytest.mark.parametrize(("words", "starts"), marks(TURNS))
def test_turns(words: str, starts: list[int]) -> None:
    assert [t.start + 1 for t in analyze(snapshot(words)).turns] == starts


STEERING = [
    # (rule, case, transcript, request of the open run r2, run it continues, first offsets of the turns)
    ("§1 turn", "a user row of no run steers the open run", "U@r2 A(c)@r2 R(c)@r2 U A@r2", (1,), "", [1]),
    ("§1 turn", "one with its id does", "U@r2 A(c)@r2 R(c)@r2 U@r2 A@r2", (1,), "", [1]),
    ("§1 turn", "one of another run does not", "U@r2 A@r2 U@r3", (1,), "", [1, 3]),
    ("§1 turn", "one of the run that it continues does", "U@r1 A@r1 U@r1 A@r2", (1,), "r1", [1]),
    ("§1 turn", "steering before the first answer joins the request", "U U@r2 A@r2", (1, 2), "", [1, 2]),
    ("§1 turn", "a request of notices starts one", "U@r1 A@r1 I N N", (3, 4, 5), "", [1, 3]),
    ("§1 turn", "a request with a user row starts at that row", "U@r1 A@r1 N U", (3, 4), "", [1, 4]),
    ("§1 turn", "a request of late results starts one", "U@r1 A(c)@r1 A@r1 R(c)~", (4,), "", [1, 4]),
]


@pytest.mark.parametrize(("words", "request_rows", "continues", "starts"), marks(STEERING))
def test_turns_of_an_open_run(words: str, request_rows: tuple[int, ...], continues: str, starts: list[int]) -> None:
    found = analyze(snapshot(words, run="r2", request=request_rows, continues=continues))
    assert [t.start + 1 for t in found.turns] == starts


def test_1_turn_a_steering_row_starts_one_once_its_run_is_closed() -> None:
    words = "U@r1 A(c1)@r1 R(c1)@r1 U A@r1"
    assert [t.start + 1 for t in analyze(snapshot(words)).turns] == [1, 4]


ROUNDS = [
    # (rule, case, transcript, request, rounds)
    ("§1 round", "one assistant row, its calls, their results", "U A(c1) R(c1) A", (1,), [(2, 3), (4,)]),
    ("§1 round", "rows appended after it up to the next", "U A N A U", (1,), [(2, 3), (4, 5)]),
    ("§1 round", "rows joined by a pause are one", "U A@r1^ A@r1 A@r1", (1,), [(2, 3), (4,)]),
    ("§1 round", "a summary of folded rounds is in none", "U K(r1) A(c1) R(c1)", (1,), [(3, 4)]),
    ("§1 round", "rows before the run are in none", "U A(c1) R(c1) U A", (4,), [(5,)]),
    ("§1 round", "none yet", "U A U", (3,), []),
    ("§1 request", "its rows lie together", "A N I U A", (2, 3, 4), [(5,)]),
]


@pytest.mark.parametrize(("words", "request_rows", "rounds"), marks(ROUNDS))
def test_rounds(words: str, request_rows: tuple[int, ...], rounds: list[tuple[int, ...]]) -> None:
    found = analyze(snapshot(words, run="r1", request=request_rows))
    assert list(found.rounds) == rounds
    assert found.request == request_rows


def test_a_continued_run_has_the_rounds_of_the_run_it_continues() -> None:
    """§1 continued run: also where a later user row joined its request."""
    words = "U@r1 A(c1)@r1 R(c1)@r1 U@r2 A@r2"
    found = analyze(snapshot(words, run="r2", request=(1, 4), continues="r1"))
    assert found.run_start == 0
    assert found.request_end == 1
    assert found.rounds == ((2, 3), (5,))


# Words that only a session shows: no fold comes by itself, a manual one keeps no tail, so that what stays says it.
PLAIN = {"auto_compact": False, "retention": {"turns": 0, "messages": 0}, "min_progress": 0.0}

REQUEST = [
    # (rule, case, script, list after a fold)
    ("§1 request", "rows of the run and of none", "U A U@r9 U I N >r9 A@r9 #", "K 3 4 5 6 7"),
    ("§1 request", "not those of another run", "U A U@r8 U@r9 >r9 A@r9 #", "K 4 5"),
    ("§1 request", "where that is empty, whoever appended it", "U A U@r8 >r9 A@r9 #", "K 3 4"),
    ("§1 request", "a late result that no request carried", "U >r1 A(c)@r1 >r1 A@r1 =r1 R(c)@r9 >r9 A@r9 #", "K 4 5"),
    ("§1 continued run", "by a late result of its own", "U >r1 A(c)@r1 >r1 A@r1 =r1 R(c) >r9 A@r9 #", "1 K 4 5"),
    ("§1 request", "rows before an assistant row are history, in one append", "U A U+A+U >r9 A@r9 #", "K 5 6"),
    ("§1 request", "rows before another result are history", "U A(c) U R(c) U >r9 A@r9 #", "K 5 6"),
    ("§1 request", "what comes before the first answer joins it", "U A >r9:U U I N A@r9 #", "K 3 4 5 6 7"),
    ("§1 request", "whoever appends it", "U A >r9:U U@r8 A@r9 #", "K 3 4 5"),
    ("§1 request", "not what comes after it", "U A >r9:U A@r9 N A@r9 # #", "3 K 6"),
    ("§1 request", "a system row in between is none of it", "U A U S >r9 A@r9 #", "K 3 4 5"),
    ("§1 continued run", "takes over the request", "U A >r1:U *r1 >r2 A@r2 #", "K 3 4"),
    ("§1 continued run", "and its rounds", "U A >r1:U A(c)@r1 R(c)@r1 >r1 =r1:failed >r2 A@r2 # #", "3 K 6"),
    ("§1 continued run", "and its user rows", "U A >r1:U A@r1 U@r1 >r1 =r1:failed >r2 A@r2 # #", "3 K 5 6"),
    ("§1 continued run", "also those of none that steered it", "U A >r1:U A@r1 U >r1 A@r1 =r1 >r2 A@r2 # #", "3 K 5 7"),
    ("§1 continued run", "twice over", "U A >r1:U A@r1 >r1 =r1 >r2 A@r2 >r2 =r2 >r3 A@r3 # #", "3 K 6"),
    ("§1 continued run", "not one with a request of its own", "U A >r1:U A@r1 >r1 =r1 >r2:U A@r2 #", "K 5 6"),
    (
        "§1 round",
        "what follows it up to the next",
        "U A >r9:U A(c)@r9 R(c)@r9 N A(d)@r9 R(d)@r9 N >r9 # #",
        "3 K 7 8 9",
    ),
    ("§1 round", "joined by a paused server tool", "U A >r9:U A@r9^ >r9 A@r9> A@r9 >r9 # #", "3 K 6"),
    ("§1 round", "the newest is whole with both halves", "U A >r9:U A@r9 A@r9^ >r9 A@r9> >r9 # #", "3 K 5 6"),
    ("§1 unit", "an injected row with its user row", "U A I U >r9 A@r9 =r9 I U >r8 A@r8 #", "K 6 7 8"),
    ("§1 row", "list order is not offset order", "U A >r9:U A@r9 # A@r9 #", "3 K 6"),
]


@pytest.mark.parametrize(("script", "listing"), marks(REQUEST))
def test_what_stays_says_what_a_row_belongs_to(client: Client, name: str, script: str, listing: str) -> None:
    host = Script(client, name, **PLAIN).play(script)
    assert host.listing() == listing
    assert host.verify().ok


def test_1_offset_is_given_once_whatever_becomes_of_the_list(client: Client, name: str) -> None:
    """§1 offset; §1 active list; §1 archive: folds, edits and restores take rows out of the list, none out of it."""
    host = Script(client, name, **PLAIN).play("U A U A")
    early = host.get().session.revision
    host.play("# U A")
    client.session.EditRows(session_service_pb2.EditRowsRequest(session_id=name, first_offset=6, last_offset=7))
    host.rows(row("U", 90))
    client.session.RestoreRevision(session_service_pb2.RestoreRevisionRequest(session_id=name, revision=early))
    last = host.rows(row("U", 91)).last_offset
    archive = [r.offset for r in host.archive()]
    assert archive == list(range(1, last + 1))
    assert [r.offset for r in host.archive() if r.HasField("compaction_summary")] == [5]
    assert host.listing() == f"1 2 3 4 {last}"


REVISIONS = [
    # (rule, case, script, by how much the revision grows)
    ("§1 revision", "an append of many rows is one", "U+A+U", 1),
    ("§1 revision", "a fold is one", "#", 1),
    ("§1 revision", "a boundary without rows changes nothing", ">r9", 0),
    ("§1 revision", "a run that ends changes nothing", "=r1", 0),
]


@pytest.mark.parametrize(("script", "grows"), marks(REVISIONS))
def test_revision_grows_with_the_list(client: Client, name: str, script: str, grows: int) -> None:
    host = Script(client, name, **PLAIN).play("U A U A U" + (" >r1:U" if script == "=r1" else ""))
    before = host.get().session.revision
    host.play(script)
    assert host.get().session.revision == before + grows


def test_1_revision_carries_a_digest_chained_over_its_parents(client: Client, name: str) -> None:
    """Equal histories give equal digests; a fold, whose id is its own, parts them for good."""
    one, other = Script(client, name, **PLAIN), Script(client, f"{name}-other", **PLAIN)
    digests = []
    for word in ["U", "A", "U", "A", "#", "U"]:
        one.play(word)
        other.play(word)
        digests.append((one.get().session.digest, other.get().session.digest))
    assert [a == b for a, b in digests] == [True] * 4 + [False] * 2
    assert len({a for a, _ in digests}) == len(digests)


RUNS = [
    # (rule, case, script that closes r1, its last event of a run)
    ("§1 run", "closed by FinishRun", "=r1", 0),
    ("§1 run", "by a recorded refusal", "*r1", 0),
    ("§1 run", "by supersession", "^r2:U", 1),
]


@pytest.mark.parametrize(("script", "superseded"), marks(RUNS))
def test_a_closed_run_is_never_opened_again(client: Client, name: str, script: str, superseded: int) -> None:
    host = Script(client, name, **PLAIN).play(f"U >r1 {script}")
    if superseded:
        host.play("=r2")
    assert refused(host.boundary, "r1", "U").reason == "RUN_NOT_OPEN"
    assert host.get().session.open_run_id == ""
    host.boundary("r3", "U")
    assert host.get().session.open_run_id == "r3"


def test_1_run_is_opened_by_the_first_request_that_names_it(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN)
    host.append(user("go"), run_id="r1")
    assert host.get().session.open_run_id == "", "an append opens none"
    host.boundary("r1")
    assert host.get().session.open_run_id == "r1"


CARRIED = [
    # (rule, case, script, list after a fold)
    ("§1 carried", "a result that was in a sent request", "U >r1 A(c)@r1 >r1:R(c) =r1 U >r2 A@r2 #", "K 4 5"),
    ("§1 carried", "also where that was refused later", "U >r1 A(c)@r1 >r1:R(c) *r1 U >r2 A@r2 #", "K 4 5"),
    ("§1 carried", "not one that came since", "U >r1 A(c)@r1 >r1 A@r1 =r1 U >r2 A@r2 R(c) U >r2 A@r2 #", "K 4 5 6 7 8"),
]


@pytest.mark.parametrize(("script", "listing"), marks(CARRIED))
def test_carried_rows_may_fold(client: Client, name: str, script: str, listing: str) -> None:
    assert Script(client, name, **PLAIN).play(script).listing() == listing


def test_1_boundary_counts_requests_over_all_runs_and_is_persisted(client: Client, name: str) -> None:
    host = Script(client, name, **PLAIN)
    assert host.get().cadence.boundaries == 0
    host.play(">r1:U A@r1 >r1 =r1 >r2:U")
    assert host.get().cadence.boundaries == 3
    imported = Script(client, f"{name}-imported", **PLAIN).play("U A U A >r1:U")
    assert imported.get().cadence.boundaries == 3, "two assistant rows were there before"


@pytest.mark.parametrize(("in_run", "request_rows", "rounds"), [(False, (3,), 0), (True, (3,), 1)])
def test_1_check_is_in_run_once_the_run_has_an_assistant_row(
    in_run: bool, request_rows: tuple[int, ...], rounds: int
) -> None:
    """§1 check."""
    words = "U A U" + " A@r1" * rounds
    found = analyze(snapshot(words, run="r1", request=request_rows))
    assert bool(found.rounds) == in_run


def test_1_fold_attempt_and_skip(client: Client, name: str) -> None:
    """§1 fold, attempt, skip: a skip moves no cadence; a failed attempt moves that of attempts alone."""
    host = Script(client, name, **PLAIN | {"summary": {"source": policy_pb2.SUMMARY_SOURCE_POLICY_CURATOR}})
    host.play("U A U A")
    untouched = host.get().cadence
    assert refused(host.compact).reason == "CURATOR_UNAVAILABLE"
    attempted = host.get().cadence
    assert attempted.HasField("last_attempt_boundary")
    assert not attempted.HasField("last_fold_boundary")
    assert not untouched.HasField("last_attempt_boundary")
    single = Script(client, f"{name}-single", **PLAIN).play("S")
    assert refused(single.compact).reason == "NOTHING_TO_FOLD"
    assert not single.get().cadence.HasField("last_attempt_boundary")
    assert single.get().cadence.last_skip == compaction_pb2.SKIP_REASON_NOTHING_TO_FOLD


def test_1_every_kind_of_row_is_in_one_unit() -> None:
    words = "S N U I A K X"
    units = analyze(snapshot(words)).units
    assert [u.offsets for u in units] == [(1,), (2,), (3, 4), (5,), (6,), (7,)]
    assert {r.kind for r in snapshot(words).rows} == set(RowKind) - {RowKind.TOOL_RESULT}
