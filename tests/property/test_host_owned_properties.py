"""A random host that keeps its list, against the rules and against a sidecar that keeps the same history (H1-H3).

The host appends turns, batches of calls, results that are late, notices and pins; it applies what it is told, aborts,
forgets about it, or undoes a fold later. Whatever it does: no row is lost, none is found twice, what it is left with is
sound and can be sent.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from foldline.v1 import compaction_pb2, compaction_service_pb2, row_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.host import Host
from tests.integration.hosted import Answer, HostedHost, assistant, flat, result, text, user
from tests.support.server import Client, running_server

_numbers = itertools.count(1)
RETENTION = {"turns": 2, "messages": 4}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("server")
    catalog = folder / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 4000, "type": "openai", "encoding": "o200k_base"}}))
    with running_server(folder, {"catalog": str(catalog), "store.synchronous": "NORMAL"}) as client:
        yield client


@dataclass(frozen=True)
class Step:
    """What the host does next; ``n`` and ``size`` mean what ``kind`` makes of them."""

    kind: str
    n: int = 0
    size: int = 1


STEPS = st.builds(
    Step,
    kind=st.sampled_from(
        ["turn"] * 2
        + ["calls"] * 3
        + ["end", "late", "notice", "pin"]
        + ["fold"] * 3
        + ["due", "abort", "ignore", "undo"]
    ),
    n=st.integers(0, 3),
    size=st.integers(1, 8),
)


class RandomHost(HostedHost):
    """A host with everything that it ever held, and what it believes the sidecar to hold."""

    def __init__(self, client: Client) -> None:
        number = next(_numbers)
        super().__init__(client, f"random-{number}", retention=RETENTION, min_boundaries_between=0)
        self.ever: dict[str, row_pb2.Row] = {}
        self.folded: set[str] = set()
        self.carried: set[str] = set()
        self.undone: list[tuple[list[tuple[str, row_pb2.Row]], str, str]] = []
        self.open_calls: list[str] = []
        self.marks = itertools.count(1)

    def mark(self) -> str:
        """A word that nothing else in the session holds."""
        return f"mark{next(self.marks)}z"

    def say(self, size: int) -> str:
        return f"{self.mark()} " + "word " * (size * 25)

    def put(self, *rows: row_pb2.Row) -> list[str]:
        ids = self.add(*rows)
        self.ever |= dict(self.list[-len(ids) :])
        return ids

    # Steps

    def step(self, step: Step) -> None:
        getattr(self, f"do_{step.kind}")(step)

    def do_turn(self, step: Step) -> None:
        """A new request; a run that is open is answered first."""
        self.do_end(step)
        self.start = self.put(user(self.say(step.size)))[0]
        self.run_id = f"run{next(self.marks)}" if step.n else ""

    def do_calls(self, step: Step) -> None:
        """A batch, of which one call may stay unanswered."""
        if not self.start:
            self.do_turn(step)
        ids = [f"call{next(self.marks)}" for _ in range(step.n + 1)]
        self.put(assistant(self.say(1) if step.size > 4 else "", *ids))
        for call in ids[step.size % 2 :]:
            self.put(result(call, self.say(step.size)))
        self.open_calls += ids[: step.size % 2]

    def do_end(self, step: Step) -> None:
        if self.start:
            self.put(assistant(self.say(step.size)))
            self.end_run()

    def do_late(self, step: Step) -> None:
        """A result whose call was sent without it."""
        if not self.open_calls:
            return
        call = self.open_calls.pop(0)
        asked = any(row.HasField("assistant") for _, row in self.list[-1:])
        if not asked:
            self.put(assistant(self.say(1)))
        self.put(result(call, self.say(step.size)))

    def do_notice(self, step: Step) -> None:
        self.put(row_pb2.Row(notice=row_pb2.NoticeRow(kind="peer", content=[text(self.say(step.size))])))

    def do_pin(self, step: Step) -> None:
        plain = [i for i, (_, row) in enumerate(self.list) if row.HasField("user")]
        if plain:
            at = plain[step.n % len(plain)]
            row_id, row = self.list[at]
            changed = row_pb2.Row()
            changed.CopyFrom(row)
            changed.pinned = step.size > 2
            self.list[at] = (row_id, changed)

    def answer(self, *, manual: bool) -> Answer | None:
        try:
            answer = self.compact(manual=manual)
        except Exception as error:
            assert "NOTHING_TO_FOLD" in str(error.trailing_metadata()), error  # type: ignore[attr-defined]
            return None
        self.sound(answer)
        if not manual:
            # What a boundary gave to be sent counts as carried, answered or not.
            self.carried.update(self.ids())
        return answer if answer.projection_id else None

    def do_fold(self, step: Step) -> None:
        self.take(self.answer(manual=True), step)

    def do_due(self, step: Step) -> None:
        """A boundary: it folds if it must."""
        self.take(self.answer(manual=False), step)

    def take(self, answer: Answer | None, step: Step) -> None:
        if answer is None:
            return
        self.undone.append((list(self.list), self.start, self.run_id))
        self.apply(answer)
        if step.size % 2:
            # A host may also have appended before it says so.
            self.put(user(self.say(1)))
        assert self.commit(answer) >= 0
        self.folded.update(i for i in answer.discarded_row_ids if i in self.ever)
        assert not self.faults()

    def do_abort(self, step: Step) -> None:
        answer = self.answer(manual=True)
        if answer is not None:
            self.abort(answer)

    def do_ignore(self, step: Step) -> None:
        self.answer(manual=bool(step.n % 2))

    def do_undo(self, step: Step) -> None:
        """The list of before the last fold, and what has come since."""
        if not self.undone:
            return
        before, start, run_id = self.undone.pop()
        known = set(dict(before))
        newest = max((int(i[1:]) for i in known), default=0)
        since = [(i, row) for i, row in self.list if i[0] == "m" and int(i[1:]) > newest]
        self.list = [*before, *since]
        if self.start not in known and self.start in dict(since):
            return
        self.start, self.run_id = start, run_id
        if any(row.HasField("user") or row.HasField("notice") for _, row in since):
            self.end_run()

    # What holds

    def sound(self, answer: Answer) -> None:
        """V1-V7 on the host's own list, read off it anew."""
        rows, ids = dict(self.list), self.ids()
        kept, gone = set(answer.kept_row_ids), set(answer.discarded_row_ids)
        assert kept | gone == set(ids)
        assert not kept & gone
        assert [i for i in ids if i in kept] == list(answer.kept_row_ids)
        if not answer.projection_id:
            assert not gone
            return
        assert any(not rows[i].HasField("compaction_summary") for i in gone)
        assert len(flat(answer.record.discarded)) == len(gone)
        assert answer.record.digest == answer.summary.compaction_summary.digest
        self.keeps_units(rows, ids, kept)
        self.keeps_what_must_stay(rows, ids, kept)
        before = answer.summary_before_row_id
        assert not before or before in kept
        place = ids.index(before) if before else len(ids)
        for call, results in self.batches(rows, ids):
            inside = call < place <= max([call, *results])
            assert not (inside and ids[call] in kept), "a summary stands inside no unit"

    def batches(self, rows: dict[str, row_pb2.Row], ids: list[str]) -> list[tuple[int, list[int]]]:
        """Positions of assistant rows with those of their results, late ones apart."""
        found: list[tuple[int, list[int]]] = []
        for position, row_id in enumerate(ids):
            row = rows[row_id]
            if row.HasField("assistant"):
                found.append((position, []))
            elif row.HasField("tool_result") and found:
                made = {
                    b.tool_call.call_id for b in rows[ids[found[-1][0]]].assistant.content if b.HasField("tool_call")
                }
                if row.tool_result.call_id in made:
                    found[-1][1].append(position)
        return found

    def keeps_units(self, rows: dict[str, row_pb2.Row], ids: list[str], kept: set[str]) -> None:
        for call, results in self.batches(rows, ids):
            assert len({ids[p] in kept for p in (call, *results)}) == 1, "V4"

    def keeps_what_must_stay(self, rows: dict[str, row_pb2.Row], ids: list[str], kept: set[str]) -> None:
        for row_id in ids:
            assert row_id in kept or not rows[row_id].pinned, "R6"
        answered = max((p for p, i in enumerate(ids) if rows[i].HasField("assistant")), default=-1)
        for row_id in ids[answered + 1 :]:
            if rows[row_id].HasField("tool_result") and row_id not in self.carried:
                assert row_id in kept, "V5: a result that no request carried"
        if self.start:
            start = ids.index(self.start)
            assert self.start in kept, "V5: the request of the open run"
            assert all(i in kept for i in ids[start:] if rows[i].HasField("user")), "V5: its user rows"
            if answered > start:
                assert ids[answered] in kept, "V5: its newest round"

    def nothing_is_lost(self) -> None:
        """Every row that ever was is in the list or once in the archive; what folded is found once."""
        verified = self.verify()
        assert verified.ok, verified.faults
        here = set(self.ids())
        archived: dict[str, list[int]] = {}
        for row in self.archive():
            for word in spoken(row).split():
                if word.startswith("mark") and not row.HasField("compaction_summary"):
                    archived.setdefault(word, []).append(row.offset)
        for row_id, row in self.ever.items():
            words = [w for w in spoken(row).split() if w.startswith("mark")]
            for word in words:
                if row_id not in here:
                    assert row_id in self.folded
                    assert len(archived[word]) == 1, f"{word} is in the archive {archived.get(word)}"
                    assert word in self.text(archived[word][0])
        self.is_found_once(archived, here)

    def is_found_once(self, archived: dict[str, list[int]], here: set[str]) -> None:
        """M2: a sample, since each search is a call."""
        indexed = [(i, r) for i, r in self.ever.items() if not r.HasField("notice")]
        for row_id, row in indexed[:: max(1, len(indexed) // 8)]:
            word = next((w for w in spoken(row).split() if w.startswith("mark")), "")
            if word:
                hits = [offset for offset, said in self.hits(word) if word in said.split()]
                expected = [] if row_id in here or row_id not in self.folded else archived[word]
                assert hits == expected, (row_id, word)


def spoken(row: row_pb2.Row) -> str:
    body = getattr(row, str(row.WhichOneof("body")))
    return " ".join(b.text.text for b in body.content) if hasattr(body, "content") else ""


@settings(max_examples=25)
@given(steps=st.lists(STEPS, min_size=12, max_size=40))
def test_h3_a_random_host_loses_nothing(client: Client, steps: list[Step]) -> None:
    host = RandomHost(client)
    for step in steps:
        host.step(step)
    # What it believes is active must be what the sidecar takes for active.
    host.end_run()
    host.compact()
    host.nothing_is_lost()
    ends = list(host.ends().values())
    assert [len(e) for e in ends if len(e) != 1] in ([], [0]), "§13: every start but one that is staged has one end"


# The same history, kept here


class Mirror:
    """One history in two sessions: one keeps the list here, the other at the host."""

    def __init__(self, client: Client) -> None:
        number = next(_numbers)
        # What is written ahead of need, where the list is kept here (A1), may cover less than a fold of now would.
        policy = {"retention": RETENTION, "min_boundaries_between": 0, "background": {"enabled": False}}
        self.hosted = HostedHost(client, f"mirror-h-{number}", **policy)
        self.sidecar = Host(client, f"mirror-s-{number}", **policy)
        self.runs = itertools.count(1)
        self.calls = itertools.count(1)
        self.run, self.prepared = "", ""

    def append(self, *rows: row_pb2.Row) -> None:
        self.hosted.add(*rows)
        self.sidecar.rows(*rows, run_id=self.run)

    def turn(self, words: str) -> None:
        self.end()
        self.run = f"r{next(self.runs)}"
        self.hosted.ask(words, run_id=self.run)
        self.sidecar.rows(user(words), run_id=self.run)
        self.boundary()

    def boundary(self) -> None:
        """Both are asked; what is due folds in both."""
        response = self.sidecar.prepare(self.run)
        self.prepared = response.prepare_id
        answer = self.hosted.compact()
        assert response.HasField("fold") == bool(answer.projection_id), (response.skip, answer.skip, answer.failure)
        self.settle(answer)

    def settle(self, answer: Answer) -> None:
        if answer.projection_id:
            self.hosted.apply(answer)
            self.hosted.commit(answer)
        self.compare()

    def answer(self, words: str, calls: int, size: int) -> None:
        ids = [f"c{next(self.calls)}" for _ in range(calls)]
        row = assistant(words, *ids)
        self.hosted.add(row)
        made = compaction_service_pb2.Answer(input=row_pb2.RowInput(rows=row_pb2.RowList(rows=[row])))
        self.sidecar.record(self.run, compaction_service_pb2.Outcome(prepare_id=self.prepared, answer=made))
        if ids:
            self.append(*(result(i, f"output of {i} " + "line " * (size * 20)) for i in ids))
            self.boundary()
        else:
            self.end()

    def end(self) -> None:
        if self.run:
            if self.hosted.list[-1][1].WhichOneof("body") != "assistant":
                last, self.run = self.run, self.run
                row = assistant("Done with it.")
                self.hosted.add(row)
                made = compaction_service_pb2.Answer(input=row_pb2.RowInput(rows=row_pb2.RowList(rows=[row])))
                self.sidecar.record(last, compaction_service_pb2.Outcome(prepare_id=self.prepared, answer=made))
            finish = compaction_service_pb2.FinishRunRequest(
                session_id=self.sidecar.id, run_id=self.run, outcome=compaction_pb2.RUN_OUTCOME_COMPLETED
            )
            self.sidecar.client.compaction.FinishRun(finish)
            self.hosted.end_run()
            self.run = ""

    def fold(self) -> None:
        def refuses(call: Any) -> Any:
            try:
                return call()
            except Exception as error:
                assert "NOTHING_TO_FOLD" in str(error.trailing_metadata()), error  # type: ignore[attr-defined]
                return None

        record = refuses(self.sidecar.compact)
        answer = refuses(lambda: self.hosted.compact(manual=True))
        assert (record is None) == (answer is None)
        if answer is not None:
            self.settle(answer)

    def compare(self) -> None:
        here = [plain(r) for r in self.sidecar.active()]
        assert here == [plain(row) for _, row in self.hosted.list]


def plain(row: row_pb2.Row) -> str:
    kind = str(row.WhichOneof("body"))
    if kind == "compaction_summary":
        return f"summary of {row.compaction_summary.of_run}: " + str(row.compaction_summary.text.count("(path"))
    return f"{kind} {spoken(row)} {row.tool_result.call_id}"


@settings(max_examples=15)
@given(
    turns=st.lists(
        st.tuples(
            st.integers(1, 6),
            st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=5),
            st.sampled_from(["", "", "fold", "fold inside"]),
        ),
        min_size=3,
        max_size=9,
    )
)
def test_h3_the_same_history_folds_as_it_does_when_the_sidecar_keeps_it(client: Client, turns: list[Any]) -> None:
    """Same planner, same checks: what stays and what goes is the same, boundary by boundary."""
    mirror = Mirror(client)
    for number, (size, rounds, folds) in enumerate(turns):
        mirror.turn(f"Request {number}. " + "word " * (size * 20))
        for calls, length in rounds:
            if mirror.run:
                mirror.answer("Thinking about it. " + "text " * (length * 5), calls, length)
        if folds == "fold inside" and mirror.run:
            mirror.fold()
        mirror.end()
        if folds == "fold":
            mirror.fold()
    mirror.compare()
    assert mirror.hosted.verify().ok
    assert mirror.sidecar.verify().ok
    assert mirror.hosted.get().totals.folds == mirror.sidecar.get().totals.folds
