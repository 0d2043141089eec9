"""A fold forced at every boundary: V1-V10, R5 and W1 hold whatever the session is, and whatever forces the fold."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from foldline.domain.enums import RowKind
from foldline.domain.rows import NewRow, Row, kind_of
from foldline.formats.importers import Recording, Step, load
from foldline.server.codec.rows import wire_row
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    event_pb2,
    event_service_pb2,
    model_pb2,
    policy_pb2,
    row_pb2,
    session_service_pb2,
)
from google.protobuf import duration_pb2

from tests.integration.host import Host
from tests.model import boundaries, changes, questions
from tests.model import host as model_host
from tests.model.driver import OPS, Driver
from tests.model.host import POLICIES, Scene
from tests.model.server import Backend
from tests.property.witness import Known, witness
from tests.support.server import Client, refusal_of, running_server
from tests.validity import anthropic_faults, google_faults, openai_chat_faults, openai_responses_faults

log = logging.getLogger(__name__)

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FILES = ("coding-session.jsonl", "airline-runs.json", "bugfix-function-calling.traj", "bugfix-text-actions.traj")
MODEL = model_pb2.ModelRef(provider="openai", model="windowed")
FAST_STEPS = 25
"""Model calls of each recording that the default suite plays."""

FORMATS: dict[Any, Callable[[Any], list[str]]] = {
    row_pb2.FORMAT_OPENAI_CHAT: openai_chat_faults,
    row_pb2.FORMAT_ANTHROPIC_MESSAGES: anthropic_faults,
    row_pb2.FORMAT_OPENAI_RESPONSES: openai_responses_faults,
    row_pb2.FORMAT_GOOGLE_GENAI: google_faults,
}


class Forced(Host):
    """A host that plays a recording and makes the sidecar fold wherever it can; ``faults`` is what did not hold.

    Modes: ``manual`` folds before each request, ``uncarried`` between its rows and the request, ``refused`` has the
    provider refuse each request once (P6), ``automatic`` has a threshold that everything reaches (P3, in a run too).
    """

    def __init__(self, client: Client, name: str, mode: str) -> None:
        policy: dict[str, Any] = {"min_boundaries_between": 0, "min_progress": 0.0}
        policy |= {"auto_compact_threshold": 1, "cooldown": duration_pb2.Duration()} if mode == "automatic" else {}
        policy |= {"auto_compact": False} if mode in ("manual", "uncarried") else {}
        self.client, self.id, self.list, self.revision = client, name, [], 0
        client.session.CreateSession(
            session_service_pb2.CreateSessionRequest(session_id=name, model=MODEL, policy=policy_pb2.Policy(**policy))
        )
        self.mode = mode
        self.known = Known()
        self.run = self.tries = self.requests = self.folds = 0
        self.faults: list[str] = []

    @property
    def run_id(self) -> str:
        return f"run-{self.run}.{self.tries}"

    def play(self, recording: Recording, steps: int | None) -> None:
        for step in recording.steps[:steps]:
            self.step(step)
        verified = self.verify()
        self.faults += [f"{self.id} {f.rule}: {f.detail}" for f in verified.faults]
        given = sum(len(s.rows) + len(s.answer or ()) for s in recording.steps[:steps])
        if verified.rows_total != given + self.folds:
            self.faults.append(f"{self.id} V10: {verified.rows_total} rows of {given} and {self.folds} summaries")

    def step(self, step: Step) -> None:
        if self.run == 0 or any(kind_of(r.body) == RowKind.USER for r in step.rows):
            if self.run:
                self.close()
            self.run, self.tries = self.run + 1, 0
            self.known = Known(carried=self.known.carried, prepared=self.known.prepared)
        if self.mode == "manual":
            self.force()
        rows = wired(step.rows)
        if self.mode == "uncarried":
            self.rows(*rows, run_id=self.run_id)
            self.force()
            rows = []
        prepared = self.boundary(rows, opens=not self.known.runs)
        if self.mode == "refused":
            self.refuse(self.run_id, prepared.prepare_id, 413, "request_too_large")
            self.tries += 1
            self.known = Known(
                self.known.request,
                self.known.runs | {self.run_id},
                self.known.carried,
                self.known.prepared,
                forced=True,
            )
            prepared = self.boundary([], opens=False)
            self.known.forced = False
        if step.answer:
            given = row_pb2.RowInput(rows=row_pb2.RowList(rows=wired(step.answer)))
            answer = compaction_service_pb2.Answer(input=given)
            self.record(self.run_id, compaction_service_pb2.Outcome(prepare_id=prepared.prepare_id, answer=answer))

    def close(self) -> None:
        self.client.compaction.FinishRun(
            compaction_service_pb2.FinishRunRequest(
                session_id=self.id, run_id=self.run_id, outcome=compaction_pb2.RUN_OUTCOME_COMPLETED
            )
        )

    def force(self) -> None:
        try:
            record = self.compact()
        except grpc.RpcError as error:
            if refusal_of(error).reason != "NOTHING_TO_FOLD":
                self.faults.append(f"{self.id} {self.requests} P7: {refusal_of(error)}")
            return
        self.judge(record)

    def boundary(self, rows: list[row_pb2.Row], *, opens: bool) -> compaction_service_pb2.PrepareRequestResponse:
        request = compaction_service_pb2.PrepareRequestRequest(
            session_id=self.id, run_id=self.run_id, known_revision=self.revision,
            reply=compaction_pb2.REPLY_MODE_EDITS, shape=compaction_service_pb2.RequestShape(model=MODEL),
        )  # fmt: skip
        request.append.rows.rows.extend(rows)
        if not rows:
            request.ClearField("append")
        prepared = self.client.compaction.PrepareRequest(request)
        self.requests += 1
        self._apply(prepared)
        if opens:
            self.opened()
        if prepared.HasField("fold"):
            self.judge(prepared.fold)
        active = self.active()
        self.known.carried = self.known.prepared = max((r.offset for r in active), default=0)
        if self.list != [r.offset for r in active]:
            self.faults.append(f"{self.id} {self.requests} W1: {self.list} is not {[r.offset for r in active]}")
        for fmt, faults in FORMATS.items():
            self.faults += [f"{self.id} {self.requests} R5: {f}" for f in faults(self.rendered(fmt))]
        return prepared

    def opened(self) -> None:
        """The run asks what stands behind the last answer and is its own or nobody's; here every run has some."""
        asked: list[int] = []
        for row in reversed(self.listed_at(None)):
            if row.HasField("assistant") or (row.HasField("tool_result") and not row.tool_result.late):
                break
            waits = not row.HasField("system") and not row.HasField("compaction_summary")
            asked += [row.offset] if waits and row.run_id in ("", self.run_id) else []
        self.known.request, self.known.runs = frozenset(asked), frozenset({self.run_id})

    def judge(self, record: compaction_pb2.CompactionRecord) -> None:
        self.folds += 1
        before, after = self.listed_at(record.revision_before), self.listed_at(record.revision_after)
        self.faults += [f"{self.id} {self.requests} {f}" for f in witness(before, after, record, self.known)]

    def failures(self) -> Counter[str]:
        """Failed folds by kind. Sources may fail and summaries may not be smaller; no plan is refused by its checks."""
        request = event_service_pb2.ListEventsRequest(session_id=self.id, page_size=500)
        found: Counter[str] = Counter()
        while True:
            page = self.client.event.ListEvents(request)
            for event in page.events:
                if event.kind == event_pb2.EVENT_KIND_COMPACTION_FAILED:
                    kind = compaction_pb2.FailureKind.Name(event.compaction_failed.failure)
                    found[kind] += 1
                    if kind == "FAILURE_KIND_REWRITE_REJECTED":
                        self.faults.append(f"{self.id} §7: {event.compaction_failed}")
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    def listed_at(self, revision: int | None) -> list[row_pb2.Row]:
        request = session_service_pb2.ListRowsRequest(session_id=self.id, page_size=500, revision=revision)
        rows: list[row_pb2.Row] = []
        while True:
            page = self.client.session.ListRows(request)
            rows += page.rows
            if not page.next_page_token:
                return rows
            request.page_token = page.next_page_token


def wired(rows: Any) -> list[row_pb2.Row]:
    return [wire_row(Row(0, r.body, r.run_id, r.pinned)) for r in rows if isinstance(r, NewRow)]


def played(folder: Path, name: str, mode: str, window: int, steps: int | None, recordings: int | None) -> Counter[str]:
    """Figures of one file in one mode; fails on the first faults."""
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not beside this checkout")
    catalog = folder / "models.json"
    entry = {"context_window": window, "type": "openai", "encoding": "o200k_base"}
    catalog.write_text(json.dumps({MODEL.model: entry}))
    figures: Counter[str] = Counter()
    faults: list[str] = []
    with running_server(folder, {"catalog": str(catalog)}) as client:
        for number, recording in enumerate(load(DATA / name)[:recordings]):
            host = Forced(client, f"{number}-{mode}", mode)
            host.play(recording, steps)
            figures.update(sessions=1, requests=host.requests, folds=host.folds)
            figures.update(host.failures())
            faults += host.faults
    assert not faults, f"{len(faults)} faults, {figures}: {faults[:5]}"
    return figures


MODES = ("manual", "uncarried", "refused", "automatic")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FILES)
def test_a_recorded_session_holds_where_every_boundary_folds(tmp_path: Path, name: str, mode: str) -> None:
    """V1-V10, R5, W1 over the beginning of every real file."""
    recordings = 2 if name == "airline-runs.json" else None
    figures = played(tmp_path, name, mode, 8_000, FAST_STEPS, recordings)
    assert figures["folds"] > 0, figures


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("window", [4_000, 32_000])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FILES)
def test_whole_recordings_hold_where_every_boundary_folds(tmp_path: Path, name: str, mode: str, window: int) -> None:
    """V1-V10, R5, W1 over all of every real file; ``--log-file-level INFO --log-file`` keeps the figures."""
    figures = played(tmp_path, name, mode, window, None, None)
    log.info("%s %s %d %s", name, mode, window, dict(figures))
    assert figures["folds"] > 0, figures


class FoldsBeforeEachRequest(Driver):
    """The random host of the model, which asks for a fold before each of its requests (P7)."""

    def prepare(
        self, scene: Scene, request: compaction_service_pb2.PrepareRequestRequest, answer: list[row_pb2.Row],
        rows: list[row_pb2.Row],
    ) -> None:  # fmt: skip
        self.compact(scene)
        super().prepare(scene, request, answer, rows)


class IsRefused(Driver):
    """Providers refuse so often that most folds answer a request that did not fit (P6)."""

    steps = OPS | {"refuse": 40}


ALWAYS = {"auto_compact_threshold": 1, "min_boundaries_between": 0, "min_progress": 0.0, "cooldown": "0s"}
"""Every request is over its threshold, in a run too."""

HOSTS: dict[str, tuple[type[Driver], tuple[dict[str, Any], ...]]] = {
    "asks before each request": (FoldsBeforeEachRequest, POLICIES),
    "is over its threshold": (Driver, (ALWAYS,)),
    "is refused": (IsRefused, ({}, {"min_boundaries_between": 0}, {"retention": {"turns": 1, "messages": 1}})),
}


def driven(folder: Path, patch: pytest.MonkeyPatch, host: str, seed: int, operations: int) -> int:
    """Folds that a random host saw, every one of which the model agreed with."""
    kind, policies = HOSTS[host]
    for module in (model_host, boundaries, changes, questions):
        patch.setattr(module, "POLICIES", policies)
    backend = Backend(folder, separate=False, seed=seed)
    try:
        driver = kind(backend, seed)
        driver.run(operations)
    finally:
        backend.close()
    counts = driver.counts
    return (
        sum(n for what, n in counts.items() if what.startswith(("fold ", "asked for: "))) + counts["ACTION_SEND_FOLDED"]
    )


@pytest.mark.parametrize("host", HOSTS)
def test_a_generated_session_holds_where_every_boundary_folds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """V1-V10, R1-R6, W1, W3, §13: rows of every type, edits, restores, restarts, supersession; the model is asked."""
    assert driven(tmp_path, monkeypatch, host, 77, 60) > 0


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(500, 506))
@pytest.mark.parametrize("host", HOSTS)
def test_generated_sessions_hold_where_every_boundary_folds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, seed: int
) -> None:
    assert driven(tmp_path, monkeypatch, host, seed, 1_200) > 20
