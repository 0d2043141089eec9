"""Summaries by a real server of llama.cpp: its answers, its small window and its own refusals (S2, S4, S5, S7, 4.4).

Its model invents what it writes. A grammar holds its answers to the six headings, so that folds commit; every token,
count, limit and refusal is the server's own.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from foldline.cli.play import Player
from foldline.formats.importers import load
from foldline.v1 import compaction_pb2, model_pb2, policy_pb2, row_pb2
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
TIMEOUT = Duration(seconds=600)
TRIM, MAP = policy_pb2.OVERSIZE_TRIM, policy_pb2.OVERSIZE_MAP

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


@contextmanager
def sidecar(
    folder: Path, server: Llama, kind: str = "openai", *, window: int = 8000, **settings: str
) -> Iterator[Client]:
    """A sidecar whose provider ``local`` is the server, and that takes its model's window for ``window``."""
    folder.mkdir(parents=True, exist_ok=True)
    models = {
        "small": {"context_window": 8000, "type": "openai", "encoding": "o200k_base"},
        "large": {"context_window": 128_000, "type": "openai", "encoding": "o200k_base"},
        "smollm2": {"context_window": window, "type": kind.split("_")[0]},
    }
    (folder / "models.json").write_text(json.dumps(models))
    configured = {
        "catalog": str(folder / "models.json"), "providers.local.type": kind,
        "providers.local.base_url": server.base_url(kind), **{f"providers.local.{k}": v for k, v in settings.items()},
    }  # fmt: skip
    with running_server(folder, configured) as client:
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
@pytest.mark.skipif(not DATA.is_dir(), reason="the real inputs are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "model", "oversize"),
    [("coding-session.jsonl", "large", TRIM), ("bugfix-text-actions.traj", "small", MAP)],
    ids=["coding-session-trimmed", "bugfix-mapped"],
)
def test_s4_a_real_session_is_folded_within_the_models_window(
    tmp_path: Path, heading: Llama, name: str, model: str, oversize: policy_pb2.Oversize.ValueType
) -> None:
    """S4, S5, XB1: no call of all these is too large for the window, and every fold is the model's own."""
    started = time.monotonic()
    (recording, *_) = load(DATA / name)
    with sidecar(tmp_path, heading, window=WINDOW) as client, structlog.testing.capture_logs() as logs:
        player = Player(client.channel, recording.name, model_pb2.ModelRef(provider="openai", model=model))
        player.create(policy_pb2.Policy(summary=by_the_model(oversize=oversize), min_boundaries_between=0))
        player.play(recording)
        host = Host.__new__(Host)
        host.client, host.id = client, player.session_id
        records = [e.compaction_completed.record for e in events(host, "COMPACTION_COMPLETED")]
        used = spent(host)
    refusals = Counter(line["kind"] for line in logs if line["event"] == "a summary's call failed")
    sources = Counter(row_pb2.SummarySource.Name(r.summary_source) for r in records)
    bounds = Counter(compaction_pb2.SourceBoundKind.Name(r.bound.kind) for r in records)
    figures = {
        "requests": player.played.requests, "folds": len(records), "attempts": used.calls,
        "calls": sum(max(1, r.bound.chunks) for r in records), "input": used.usage.input_tokens,
        "output": used.usage.output_tokens, "refusals": dict(refusals), "bounds": dict(bounds),
        "seconds": round(time.monotonic() - started),
    }  # fmt: skip
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    assert player.played.verify_ok, player.played.faults
    assert not refusals, figures
    assert set(sources) == {"SUMMARY_SOURCE_PROVIDER"}, figures
    assert used.folds == len(records) > 1, figures
    wanted = "TRIMMED" if oversize == TRIM else "MAPPED"
    assert bounds[f"SOURCE_BOUND_KIND_{wanted}"] or bounds["SOURCE_BOUND_KIND_REQUESTS_ONLY"], figures
