"""§11: which calls count, what a trim leaves, what is saved where nothing folds, what results are marked with."""

from __future__ import annotations

from typing import Any

import pytest
from foldline.v1 import checkpoint_pb2, compaction_pb2, compaction_service_pb2, policy_pb2

from tests.decisions.script import Script
from tests.decisions.table import marks
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused

PLAIN: dict[str, Any] = {
    "auto_compact": False,
    "retention": {"turns": 0, "messages": 0},
    "min_progress": 0.0,
    "checkpoints": policy_pb2.CheckpointsPolicy(enabled=True),
}


class Saver(Script):
    def save(self, **fields: Any) -> compaction_service_pb2.SaveCheckpointResponse:
        request = compaction_service_pb2.SaveCheckpointRequest(session_id=self.id, description="so far", **fields)
        return self.client.compaction.SaveCheckpoint(request)

    def available(self) -> int:
        return int(refused(self.save, trim_count=1000).metadata["available"])

    def saved(self) -> list[checkpoint_pb2.Checkpoint]:
        request = compaction_service_pb2.ListCheckpointsRequest(session_id=self.id)
        return list(self.client.compaction.ListCheckpoints(request).checkpoints)


COUNTS = [
    # (rule, case, script, how many calls may be trimmed)
    ("K2", "a completed call counts", "U A(c) R(c) A", 1),
    ("K2", "each call of a batch counts", "U A(c,d) R(c) R(d) A", 2),
    ("K2", "one without a result does not", "U A(c,d) R(c) A", 1),
    ("K2", "nor one with an interim result alone", "U A(c) R(c)? A", 0),
    ("K2", "one whose result came after an interim one counts once", "U A(c) R(c)? R(c) A", 1),
    ("K2", "the newest round of no run does not", "U A(c) R(c) A(d) R(d)", 1),
    ("K2", "nor that of the open run", ">r1:U A(c)@r1 >r1:R(c)@r1 A(d)@r1 >r1:R(d)@r1", 1),
    ("K2", "once the run is closed it still is the newest", ">r1:U A(c)@r1 >r1:R(c)@r1 A(d)@r1 >r1:R(d)@r1 =r1", 1),
    ("K2", "calls of rounds before it count", ">r1:U A(c)@r1 >r1:R(c)@r1 A@r1 >r1 =r1", 1),
    ("K2", "one whose result was not carried does not", ">r1:U A(c)@r1 R(c)@r1 A@r1", 0),
    ("K2", "a pinned row holds its call", "U A(c)! R(c) A(d) R(d) A", 1),
    ("K2", "a pinned result holds its whole unit", "U A(c,d) R(c) R(d)! A", 0),
    ("K2", "a late result counts with its call", ">r1:U A(c)@r1 >r1 =r1 R(c) >r2:U A@r2 =r2", 1),
    ("K2", "a late result in the open request does not", ">r1:U A(c)@r1 >r1 =r1 >r2:U+R(c)@r2 A@r2", 0),
    ("K2", "an id that repeats is two calls", "U A(c) R(c) A(c) R(c) A", 2),
    ("K2", "a folded call does not", "U A(c) R(c) A U A # U A(d) R(d) A", 1),
]  # fmt: skip


@pytest.mark.parametrize(("script", "available"), marks(COUNTS))
def test_which_calls_count(client: Client, name: str, script: str, available: int) -> None:
    host = Saver(client, name, **PLAIN).play(script)
    before = host.listing()
    refusal = refused(host.save, trim_count=available + 1)
    assert (refusal.reason, refusal.metadata["available"]) == ("TRIM_COUNT_TOO_LARGE", str(available))
    assert host.listing() == before
    assert not host.saved()
    if available:
        host.save(trim_count=available)
    assert host.available() == 0
    assert host.verify().ok


TRIMS = [
    # (rule, case, script, calls to trim, list after)
    ("K2", "a row with text gives its place to what is left", "U A(c) R(c) A", 1, "1 5 4"),
    ("K2", "the oldest go", "U A(c) R(c) A(d) R(d) A", 1, "1 7 4 5 6"),
    ("K2", "a batch loses its first call", "U A(c,d) R(d) R(c) A", 1, "1 6 3 5"),
    ("K2", "what was said between stays", "U A(c) R(c) U N A(d) R(d) A", 2, "1 9 4 5 10 8"),
    ("K2", "context and system rows stay", "S U A(c) R(c) I U A", 1, "1 2 8 5 6 7"),
    ("K2", "every result of the call goes", "U A(c) R(c)? R(c) A", 1, "1 6 5"),
    ("K2", "a late result goes too", ">r1:U A(c)@r1 >r1 =r1 R(c) >r2:U A@r2 =r2", 1, "1 6 4 5"),
    ("K2", "of a paused message the calls go", "U A(c)^ R(c) A> A", 1, "1 6 4 5"),
]


@pytest.mark.parametrize(("script", "count", "listing"), marks(TRIMS))
def test_what_a_trim_leaves(client: Client, name: str, script: str, count: int, listing: str) -> None:
    host = Saver(client, name, **PLAIN).play(script)
    before = host.listing()
    revision = host.get().session.revision
    checkpoint = host.save(trim_count=count).checkpoint
    assert host.listing() == listing
    assert (checkpoint.revision_before, checkpoint.revision_after) == (revision, revision + 1)
    assert host.verify().ok
    gone = {str(o) for r in checkpoint.discarded for o in range(r.first, r.last + 1)}
    assert gone == set(before.split()) - set(listing.split())


FOLDS = [
    # (rule, case, script, whether something folds)
    ("K1", "the ordinary manual fold", "U A U A U A", True),
    ("K1", "nothing that may fold", "U", False),
    ("K1", "an empty session", "", False),
    ("K1", "one round of a run", ">r1:U A@r1", False),
    ("K1", "only a summary", "U A #", False),
]


@pytest.mark.parametrize(("script", "folds"), marks(FOLDS))
def test_a_checkpoint_is_saved_whether_or_not_something_folds(
    client: Client, name: str, script: str, folds: bool
) -> None:
    host = Saver(client, name, **PLAIN).play(script)
    revision = host.get().session.revision
    saved = host.save()
    assert saved.HasField("fold") == folds
    assert (saved.skip == compaction_pb2.SKIP_REASON_NOTHING_TO_FOLD) != folds
    assert saved.checkpoint.revision_after - revision == int(folds)
    assert saved.checkpoint.fold_id == saved.fold.fold_id
    assert host.saved() == [saved.checkpoint]
    assert host.verify().ok


def test_k1_a_fold_that_fails_saves_nothing(client: Client, name: str) -> None:
    policy = {**PLAIN, "summary": policy_pb2.SummaryPolicy(source=policy_pb2.SUMMARY_SOURCE_POLICY_PROVIDER)}
    host = Saver(client, name, **policy).play("U A U A U A")
    refusal = refused(host.save)
    assert refusal.reason == "SUMMARIZER_FAILED"
    assert not host.saved()


USAGES: list[tuple[str, str, dict[str, int] | None, str]] = [
    # (rule, case, the usage of the answer that made the call, mark of its result)
    ("K4", "a report is told as it came", {"prompt_tokens": 321, "completion_tokens": 4}, "321"),
    ("K4", "also where it can be no reading of the request", {"prompt_tokens": 3, "completion_tokens": 4}, "3"),
    ("K4", "cached tokens are part of it",
     {"prompt_tokens": 400, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 300}}, "400"),  # type: ignore[dict-item]
    ("K4", "none is unavailable", None, "unavailable"),
    ("K4", "nought is none", {"prompt_tokens": 0, "completion_tokens": 4}, "unavailable"),
]  # fmt: skip


@pytest.mark.parametrize(("usage", "mark"), marks(USAGES))
def test_what_results_are_marked_with(client: Client, name: str, usage: dict[str, int] | None, mark: str) -> None:
    host = Saver(client, name, **PLAIN)
    prepared = host.prepare("r1", user("q " * 200))
    host.prepare("r1", result("c", "x"), previous_answer=host.answer(prepared, calls("c"), usage=usage))
    row = next(r for r in host.active() if r.HasField("tool_result"))
    assert row.tool_result.usage_mark == mark
    sent = f"[input tokens: {mark}]" if mark == "unavailable" else f"[input tokens: {mark}, one request behind]"
    assert host.rendered()[-1]["content"] == f"x\n{sent}"


def test_k4_a_mark_never_changes(client: Client, name: str) -> None:
    """Fixed at append: what is reported of a later request is of later results."""
    host = Saver(client, name, **PLAIN)
    prepared = host.prepare("r1", user("q " * 200))
    for n, count in enumerate((300, 350)):
        outcome = host.answer(prepared, calls(f"c{n}"), usage={"prompt_tokens": count, "completion_tokens": 1})
        prepared = host.prepare("r1", result(f"c{n}", "x"), previous_answer=outcome)
    host.record("r1", host.answer(prepared, assistant("ok"), usage={"prompt_tokens": 390, "completion_tokens": 1}))
    marked = [r.tool_result.usage_mark for r in host.active() if r.HasField("tool_result")]
    assert marked == ["300", "350"]
