"""§5: the cadence over boundaries, as a host sees it. Single decisions are in ``tests/unit/engine/test_cadence_*``.

T is 3 200 tokens, W 4 000 with 100 reserved. The host counts each request: that moves the forecast alone, which between
T and W is an ordinary trip.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    event_pb2,
    policy_pb2,
    pressure_pb2,
    session_service_pb2,
    warning_pb2,
)
from google.protobuf import duration_pb2

from tests.decisions.script import Script
from tests.decisions.table import marks
from tests.support.requests import user
from tests.support.server import Client, refused, running_server

Shape = compaction_service_pb2.RequestShape
LETTERS = {
    "UNSPECIFIED": ".",
    "FIRST_BOUNDARY": "1",
    "CADENCE": "c",
    "NO_PROGRESS": "n",
    "NOTHING_TO_FOLD": "o",
    "COOLDOWN": "k",
    "AFTER_RESTORE": "r",
    "ATTEMPT_FAILED": "x",
}
"""How a boundary went: ``F`` for a fold, else why it did not fold; ``.`` where nothing was due."""


class Run(Script):
    """One run; every boundary brings a short user row, and its answer is two rounds."""

    def went(self, *counts: int) -> str:
        told = ""
        for tokens in counts:
            # What the host counts is the list as it is, with the answer.
            self.revision, self.list = self.get().session.revision, self.offsets()
            prepared = self.prepare("r1", user("go on"), shape=Shape(input_tokens=tokens or None))
            skip = compaction_pb2.SkipReason.Name(prepared.skip).removeprefix("SKIP_REASON_")
            told += "F" if prepared.HasField("fold") else LETTERS[skip]
            self.prepared = prepared
            self.play("A@r1+A@r1")
        return told


def grown(client: Client, name: str, history: str, **policy: Any) -> Run:
    policy = {"output_reserve_tokens": 100, "retention": {"turns": 0, "messages": 0}, "min_progress": 0.0} | policy
    return Run(client, name, **policy).play(history)


HISTORY = "U A U A U A"
T, W = 3_200, 3_900

CADENCE: list[tuple[str, str, str, dict[str, Any], tuple[int, ...], str]] = [
    # (rule, case, history, policy, what the host counts at each boundary, how each went)
    ("C1", "ordinary trips do not fold at boundary 0", "U@r0 U@r0 U@r0 U@r0 U@r0 U@r0", {}, (T, T), "1F"),
    ("C1", "capacity does", "U@r0 U@r0 U@r0 U@r0 U@r0 U@r0", {}, (W,), "F"),
    ("C1", "an imported session is past boundary 0", HISTORY, {}, (T,), "F"),
    ("C2", "ordinary trips wait after a fold", HISTORY, {}, (T, T, T, T), "FccF"),
    ("C2", "not those at W", HISTORY, {}, (T, W), "FF"),
    ("C2", "nobody waits where it is 0", HISTORY, {"min_boundaries_between": 0}, (T, T), "FF"),
    ("C2", "a longer pause", HISTORY, {"min_boundaries_between": 5}, (T, *[T] * 5), "FccccF"),
    ("C4", "too little progress is skipped", HISTORY, {"min_progress": 0.99}, (T, T), "nn"),
    ("C4", "a skip moves no cadence", HISTORY, {"min_progress": 0.99}, (T, W), "nF"),
    ("C7", "no progress is asked for where W is at stake", HISTORY, {"min_progress": 0.99}, (W,), "F"),
    ("C8", "nothing due is no skip", HISTORY, {}, (0, 0), ".."),
]


@pytest.mark.parametrize(("history", "policy", "counts", "went"), marks(CADENCE))
def test_how_boundaries_go(
    client: Client, name: str, history: str, policy: dict[str, Any], counts: tuple[int, ...], went: str
) -> None:
    assert grown(client, name, history, **policy).went(*counts) == went


def test_c3_a_fold_that_leaves_the_history_over_t_makes_it_ordinary_and_warns_once(client: Client, name: str) -> None:
    """C3: the system row alone is over T, and no fold can change that."""
    host = grown(client, name, "", auto_compact_threshold=700)
    host.append({"role": "system", "content": "Mind the rules. " * 200}, user("hello"), user("hello again"))
    host.play("A@r0 U A@r0")
    assert host.went(0) == "F"
    warned = [w.code for w in host.prepared.warnings]
    assert warned == [warning_pb2.WARNING_CODE_HISTORY_OVER_THRESHOLD]
    history = next(
        s for s in host.prepared.pressure_sent.signals if s.kind == pressure_pb2.SIGNAL_KIND_HISTORY_ESTIMATE
    )
    assert getattr(history, "class") == pressure_pb2.TRIGGER_CLASS_ORDINARY
    assert host.went(0, 0) == "cc"
    assert not [w for w in host.prepared.warnings if w.code == warning_pb2.WARNING_CODE_HISTORY_OVER_THRESHOLD]


PROVIDER = policy_pb2.SUMMARY_SOURCE_POLICY_CURATOR
"""A source that is not there: every attempt fails."""


def test_c5_a_failed_automatic_attempt_cools_down_until_its_time_and_a_manual_fold_ignores_it(tmp_path: Path) -> None:
    now = [1_000_000.0]
    with running_server(tmp_path, clock=lambda: now[0]) as client:
        host = grown(
            client, "s", HISTORY, summary={"source": PROVIDER}, cooldown=duration_pb2.Duration(seconds=60),
            min_boundaries_between=0, auto_compact_threshold=400,
        )  # fmt: skip
        assert host.went(0, 0, 0) == "xkk"
        assert host.listing() == " ".join(map(str, range(1, 16))), "requests go out as they are"
        now[0] += 59
        assert host.went(0) == "k"
        now[0] += 1
        assert host.went(0) == "x"
        assert refused(host.compact).reason == "CURATOR_UNAVAILABLE", "tried all the same"
        extractive = policy_pb2.Policy(summary={"source": policy_pb2.SUMMARY_SOURCE_POLICY_EXTRACTIVE})
        client.session.UpdateSession(session_service_pb2.UpdateSessionRequest(session_id="s", policy=extractive))
        assert host.went(0) == "k"
        assert host.compact().trigger == compaction_pb2.TRIGGER_MANUAL
        assert not host.get().cadence.HasField("cooldown_until"), "its success ends the cooldown"


def test_c5_a_manual_fold_that_is_not_smaller_is_nothing_to_fold_and_cools_nothing(client: Client, name: str) -> None:
    host = grown(client, name, "")
    host.append(user("hi"), {"role": "assistant", "content": "yes"})
    refusal = refused(host.compact)
    assert refusal.reason == "NOTHING_TO_FOLD"
    assert not host.get().cadence.HasField("cooldown_until")


def test_c4_p6_is_exempt_for_two_attempts_without_an_answered_request_between(client: Client, name: str) -> None:
    """C4, 4.4: the third obeys; an answer starts the count anew."""
    host = grown(client, name, "", min_progress=0.9, auto_compact_threshold=3_000)
    host.append({"role": "system", "content": "Mind the rules. " * 300})

    def refusal(n: int) -> str:
        prepared = host.prepare(f"r{n}", user(f"{n} " + "word " * 300))
        host.refuse(f"r{n}", prepared.prepare_id, 413, "request_too_large")
        return "F" if prepared.HasField("fold") else LETTERS[
            compaction_pb2.SkipReason.Name(prepared.skip).removeprefix("SKIP_REASON_")
        ]  # fmt: skip

    assert [refusal(n) for n in range(4)] == [".", "F", "F", "n"]
    prepared = host.prepare("r9", user("fine"))
    host.record("r9", host.answer(prepared, {"role": "assistant", "content": "ok"}, finish=1))
    assert [refusal(n) for n in range(10, 12)] == [".", "F"]


def test_c8_the_log_has_a_skip_when_its_reason_changes(client: Client, name: str) -> None:
    host = grown(client, name, HISTORY, min_progress=0.99)
    assert host.went(T, T, 0, T, W, T, T) == "nn.nFcc"
    skips = [e for e in host.events() if e.kind == event_pb2.EVENT_KIND_COMPACTION_SKIPPED]
    assert [compaction_pb2.SkipReason.Name(e.compaction_skipped.reason) for e in skips] == [
        "SKIP_REASON_NO_PROGRESS",
        "SKIP_REASON_CADENCE",
    ]


RECORD = [
    # (rule, case, what happens, fields of the record that are set after it)
    ("§5", "a new session", "", set()),
    ("§5", "a fold", "#", {"last_fold_boundary", "last_attempt_boundary", "left_tokens", "left_threshold_tokens"}),
    ("4.3", "a fold drops count and anchor", "answer #",
     {"last_fold_boundary", "last_attempt_boundary", "left_tokens", "left_threshold_tokens"}),
    ("4.3", "an answer", "answer", {"count_tokens", "anchor_tokens"}),
]  # fmt: skip


@pytest.mark.parametrize(("script", "fields"), marks(RECORD))
def test_the_record_is_kept_with_the_session(tmp_path: Path, script: str, fields: set[str]) -> None:
    """§5: and survives a restart of the server."""
    with running_server(tmp_path) as client:
        host = grown(client, "s", HISTORY, auto_compact=False)
        if "answer" in script:
            prepared = host.prepare("r1", user("go"))
            usage = {"prompt_tokens": prepared.pressure_sent.forecast_tokens}
            host.record("r1", host.answer(prepared, {"role": "assistant", "content": "ok"}, usage=usage, finish=1))
        if "#" in script:
            host.compact()
        before = host.get().cadence
    names = ("last_fold_boundary", "last_attempt_boundary", "count_tokens", "anchor_tokens", "left_tokens")
    assert {f for f in (*names, "left_threshold_tokens") if before.HasField(f)} == fields
    with running_server(tmp_path) as client:
        again = client.session.GetSession(session_service_pb2.GetSessionRequest(session_id="s"))
        assert again.cadence == before
