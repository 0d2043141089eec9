"""Summaries by a real server of llama.cpp: its answers, its small window and its own refusals (S2, S4, S5, S7, 4.4).

Its model invents what it writes. A grammar holds its answers to the six headings, so that folds commit; every token,
count, limit and refusal is the server's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
from foldline.cli.play import Player
from foldline.formats.importers import Step, load
from foldline.v1 import compaction_pb2, compaction_service_pb2, model_pb2, policy_pb2, row_pb2
from google.protobuf.duration_pb2 import Duration

from tests.integration.host import Host
from tests.integration.test_provider_summaries import LINE, due, ended_once, events, spent, turn
from tests.support.llama import INSTALLED, Llama, llama
from tests.support.providers import HEADINGS
from tests.support.requests import assistant, user
from tests.support.server import Client, running_server

DATA = Path(__file__).parents[3] / "shared" / "data"
WINDOW = 2048
KINDS = ("openai", "openai_responses", "anthropic")
"""The APIs that the server has."""
LINES = (
    "\n".join(f'h{n} ::= "## {head}\\n" line line?' for n, head in enumerate(HEADINGS)),
    "root ::= " + ' "\\n" '.join(f"h{n}" for n in range(len(HEADINGS))),
    r'line ::= "- " [A-Z] [a-z ]{8,60} ".\n"',
)
GRAMMAR = "\n".join(LINES)
ENDLESS = "root ::= [a-z ]+"
TIMEOUT = Duration(seconds=3000)
"""For all calls of a summary, side by side or not, where other work shares the cores."""
PACE = 20.0
"""Seconds from one request of the coding session to the next, on average."""
MAP = policy_pb2.OVERSIZE_MAP

pytestmark = pytest.mark.skipif(not INSTALLED, reason="make llama installs the server and its model")


@pytest.fixture(scope="module")
def plain() -> Iterator[Llama]:
    """A server that writes what it likes."""
    with llama(WINDOW) as server:
        yield server


@pytest.fixture(scope="module")
def heading() -> Iterator[Llama]:
    """A server that writes six headings."""
    with llama(WINDOW, GRAMMAR) as server:
        yield server


@pytest.fixture(scope="module")
def endless() -> Iterator[Llama]:
    """A server that writes until its window is full."""
    with llama(WINDOW, ENDLESS) as server:
        yield server


@contextmanager
def sidecar(
    folder: Path, server: Llama, kind: str = "openai", *, window: int = 8000, clock: Callable[[], float] = time.time,
    **settings: str,
) -> Iterator[Client]:  # fmt: skip
    """A sidecar whose provider ``local`` is the server, and that takes its model's window for ``window``."""
    folder.mkdir(parents=True, exist_ok=True)
    models = {
        "small": {"context_window": 8000, "type": "openai", "encoding": "o200k_base"},
        "medium": {"context_window": 32_000, "type": "openai", "encoding": "o200k_base"},
        "large": {"context_window": 128_000, "type": "openai", "encoding": "o200k_base"},
        "smollm2": {"context_window": window, "type": kind.split("_")[0]},
    }
    (folder / "models.json").write_text(json.dumps(models))
    configured = {
        "catalog": str(folder / "models.json"), "providers.local.type": kind,
        "providers.local.base_url": server.base_url(kind), **{f"providers.local.{k}": v for k, v in settings.items()},
    }  # fmt: skip
    with running_server(folder, configured, clock=clock) as client:
        yield client


def by_the_model(**summary: Any) -> policy_pb2.SummaryPolicy:
    """Summaries short enough for so small a window, by the server's model."""
    fast = model_pb2.ModelRef(provider="local", model="smollm2")
    given = {"fast_model": fast, "timeout": TIMEOUT, "max_tokens": 256, "retries": 0, **summary}
    return policy_pb2.SummaryPolicy(**given)


def grown(client: Client, name: str, *, turns: int = 16, **summary: Any) -> Host:
    """A session over its threshold."""
    host = Host(client, name, auto_compact_threshold=1200, min_boundaries_between=0, summary=by_the_model(**summary),
                retention=policy_pb2.RetentionPolicy(turns=1, messages=2))  # fmt: skip
    host.append(*(m for n in range(turns) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 500)))))
    return host


@pytest.mark.parametrize("kind", KINDS)
def test_s7_a_refusal_for_size_is_understood_and_leaves_a_handoff(tmp_path: Path, plain: Llama, kind: str) -> None:
    """The settings say that the window is four times what it is."""
    with sidecar(tmp_path, plain, kind) as client, structlog.testing.capture_logs() as logs:
        host = grown(client, "over")
        folded = due(host)
        assert folded.action == compaction_pb2.ACTION_SEND_FOLDED
        assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_MECHANICAL
        (said,) = [line for line in logs if line["event"] == "a summary's call failed"]
        assert (said["kind"], said["what"]) == ("CONTEXT_EXCEEDED", "answered 400")
        assert f'"n_ctx":{WINDOW}' in said["said"]
        usage = spent(host)
        assert (usage.calls, usage.folds, usage.usage.input_tokens) == (1, 0, 0)
        assert turn(host, 300).skip in (0, compaction_pb2.SKIP_REASON_COOLDOWN)
        assert spent(host).calls == 1
        assert ended_once(host)
        assert host.verify().ok


def test_did_not_fit_the_hosts_own_refusal_folds_the_next_request_which_fits(tmp_path: Path, plain: Llama) -> None:
    """4.4, P6, XB3: a host calls a model whose real window is a quarter of what its catalog says."""
    with sidecar(tmp_path, plain) as client:
        host = Host(client, "host", summary=policy_pb2.SummaryPolicy(
            source=policy_pb2.SUMMARY_SOURCE_POLICY_EXTRACTIVE, max_tokens=256, appendix_tokens=0,
        ))  # fmt: skip
        host.append(*(m for n in range(14) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 500)))))
        first = host.prepare("r1", user("What fails?"))
        assert first.action == compaction_pb2.ACTION_SEND
        status, body = said(plain, host)
        assert status == 400
        recorded = host.refuse("r1", first.prepare_id, status, body.decode())
        assert recorded.refusal == compaction_pb2.REFUSAL_KIND_CONTEXT_EXCEEDED
        second = host.prepare("r2", user("What fails?"))
        assert second.action == compaction_pb2.ACTION_SEND_FOLDED
        assert second.fold.trigger == compaction_pb2.TRIGGER_DID_NOT_FIT
        status, body = said(plain, host)
        assert status == 200, body
        usage = json.loads(body)["usage"]
        answered = host.record("r2", host.answer(second, json.loads(body)["choices"][0]["message"], usage=usage))
        assert answered.usage.usage.input_tokens == usage["prompt_tokens"] < WINDOW
        assert host.verify().ok


def said(server: Llama, host: Host) -> tuple[int, bytes]:
    """What the server says to the transcript as it stands."""
    return server.post("/v1/chat/completions", {"model": "smollm2", "messages": host.rendered(), "max_tokens": 4})


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_s1_every_api_writes_a_summary(tmp_path: Path, heading: Llama, kind: str) -> None:
    with sidecar(tmp_path, heading, kind, window=WINDOW) as client:
        host = grown(client, "written", turns=8)
        folded = due(host)
        assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
        assert [line[3:] for line in folded.fold.summary_text.splitlines() if line.startswith("## ")] == list(HEADINGS)
        usage = folded.fold.usage
        assert WINDOW / 4 < usage.input_tokens < WINDOW - usage.output_tokens
        assert usage.output_tokens > 60
        assert (spent(host).calls, spent(host).folds) == (1, 1)
        assert ended_once(host)
        assert host.verify().ok


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_s5_an_answer_that_was_cut_off_is_no_summary(tmp_path: Path, plain: Llama, kind: str) -> None:
    """The server's Responses call it ``completed``; its tokens say that it is not."""
    with sidecar(tmp_path, plain, kind, window=1200, max_output="24") as client:
        host = grown(client, "cut", turns=8)
        assert due(host).action == compaction_pb2.ACTION_SEND
        (event,) = events(host, "COMPACTION_FAILED")
        failed = event.compaction_failed
        assert failed.failure == compaction_pb2.FAILURE_KIND_SUMMARY_REJECTED
        assert failed.message == "local stopped at its length limit"
        assert failed.usage.output_tokens == 24
        assert host.offsets() == list(range(1, len(host.offsets()) + 1))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_s7_an_answer_that_fills_the_window_is_understood_and_leaves_a_handoff(
    tmp_path: Path, endless: Llama, kind: str
) -> None:
    """S4, S7: the input fits, in a window a quarter of what the settings say; the answer does not, nor is that said."""
    with sidecar(tmp_path, endless, kind) as client:
        host = grown(client, "filled", turns=7, max_tokens=1024)
        folded = due(host)
        assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_MECHANICAL
        usage = spent(host)
        assert (usage.calls, usage.folds) == (1, 0)
        assert usage.usage.input_tokens + usage.usage.output_tokens == WINDOW
        assert ended_once(host)
        assert host.verify().ok


@dataclass
class Replay:
    """What a recording that was played to its end showed.

    Attributes:
        sources: who wrote each fold, in order.
        attempts: to have a fold written by the model; ``spent`` tokens in all, those of what failed among them.
        calls: whose answers are in folds, parts of a mapped summary one by one.
        refusals: what the server said to calls that failed.
        tokens: of each fold that the model wrote: those of its input and of its answer, over all its calls.
        coverage: of each fold: by its summary alone, with its appendix, found by memory (S9).
    """

    requests: int = 0
    sources: list[str] = field(default_factory=list)
    bounds: dict[str, int] = field(default_factory=dict)
    attempts: int = 0
    spent: int = 0
    calls: int = 0
    failures: list[str] = field(default_factory=list)
    skips: dict[str, int] = field(default_factory=dict)
    refusals: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[tuple[int, int]] = field(default_factory=list)
    coverage: list[tuple[float, float, float]] = field(default_factory=list)
    seconds: int = 0


def replayed(
    folder: Path, server: Llama, name: str, model: str, *, window: int, a_request: float = 0.0, **summary: Any
) -> Replay:
    """Plays a real session to its end. Every fold ended in one event, and it verifies.

    Args:
        window: what the catalog says that the server takes.
        a_request: seconds by the sidecar's clock from one request to the next, on top of those that pass.
    """
    started, passed, shown = time.monotonic(), [time.time()], Replay()
    (recording, *_) = load(DATA / name)

    def after(_player: Player, _step: Step, prepared: compaction_service_pb2.PrepareRequestResponse) -> None:
        passed[0] += a_request
        if prepared.skip:
            skip = compaction_pb2.SkipReason.Name(prepared.skip).removeprefix("SKIP_REASON_")
            shown.skips[skip] = shown.skips.get(skip, 0) + 1

    with (
        sidecar(folder, server, window=window, clock=lambda: passed[0] + time.monotonic() - started) as client,
        structlog.testing.capture_logs() as logs,
    ):
        player = Player(client.channel, recording.name, model_pb2.ModelRef(provider="openai", model=model))
        player.create(policy_pb2.Policy(summary=by_the_model(**summary), min_boundaries_between=0))
        player.play(recording, after)
        assert player.played.verify_ok, player.played.faults
        host = Host.of(client, player.session_id)
        assert ended_once(host)
        completed = [e.compaction_completed.record for e in events(host, "COMPACTION_COMPLETED")]
        shown.failures = [e.compaction_failed.message for e in events(host, "COMPACTION_FAILED")]
        used = spent(host)
        shown.attempts, shown.spent = used.calls, used.usage.input_tokens + used.usage.output_tokens
    shown.requests = player.played.requests
    assert player.played.folds == len(completed)
    failed = [line for line in logs if line["event"] == "a summary's call failed"]
    assert {line["what"] for line in failed} <= {"answered 400"}, failed
    shown.refusals = [{"kind": line["kind"], **json.loads(line["said"])["error"]} for line in failed]
    for record in completed:
        shown.sources.append(row_pb2.SummarySource.Name(record.summary_source).removeprefix("SUMMARY_SOURCE_"))
        bound = compaction_pb2.SourceBoundKind.Name(record.bound.kind).removeprefix("SOURCE_BOUND_KIND_")
        covered = record.coverage
        shown.coverage.append((round(covered.summary, 3), round(covered.with_appendix, 3), round(covered.memory, 3)))
        if record.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER:
            shown.bounds[bound] = shown.bounds.get(bound, 0) + 1
            shown.calls += max(1, record.bound.chunks)
            shown.tokens.append((record.usage.input_tokens, record.usage.output_tokens))
    shown.seconds = round(time.monotonic() - started)
    (folder / "figures.json").write_text(json.dumps(asdict(shown)))
    return shown


needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the real inputs are not beside this checkout")


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_s4_a_real_session_is_mapped_within_the_models_window(tmp_path: Path, heading: Llama) -> None:
    """S4, S5, XB1: no call of all these is too large for the window, and every fold is the model's own."""
    shown = replayed(tmp_path, heading, "bugfix-text-actions.traj", "small", window=WINDOW, oversize=MAP)
    assert (shown.refusals, shown.failures) == ([], []), shown
    assert set(shown.sources) == {"PROVIDER"}, shown
    assert shown.attempts == len(shown.sources) > 1, shown
    assert set(shown.bounds) == {"MAPPED"}, shown


@needs_data
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("model", "refused"), [("large", True), ("medium", False)], ids=["refused", "filled"])
def test_s7_a_real_session_overflows_once_and_is_folded_by_the_model_from_then_on(
    tmp_path: Path, heading: Llama, model: str, refused: bool
) -> None:
    """S4, S7, C5, XB10, XB16: the catalog says four times the window served, until the first call says what that is.

    Long rows make a call that is refused; of few rows the call fits, and its answer fills the window. That fold is
    handed off, the model is asked again after the cooldown, and no call is too large from then on.
    """
    shown = replayed(tmp_path, heading, "coding-session.jsonl", model, window=4 * WINDOW, a_request=PACE)
    assert shown.requests == 485
    assert shown.failures == [], shown
    assert shown.sources[0] == "MECHANICAL"
    assert set(shown.sources[1:]) == {"PROVIDER"}, shown
    assert shown.attempts == shown.calls + 1 == len(shown.sources) > 4, shown
    assert all(WINDOW / 4 < given < WINDOW - wrote for given, wrote in shown.tokens), shown
    overflow = shown.spent - sum(given + wrote for given, wrote in shown.tokens)
    if refused:
        (said,) = shown.refusals
        assert (said["kind"], said["n_ctx"]) == ("CONTEXT_EXCEEDED", WINDOW)
        assert WINDOW < said["n_prompt_tokens"] < 4 * WINDOW
        assert overflow == 0, "nobody pays for a refusal"
    else:
        assert shown.refusals == [], shown
        assert overflow == WINDOW
