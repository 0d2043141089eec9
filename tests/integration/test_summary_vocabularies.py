"""Summaries of sessions whose model counts otherwise than who writes them, in texts that show it (V6)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    model_pb2,
    policy_pb2,
    row_pb2,
    session_service_pb2,
)

from tests.integration.host import Host
from tests.integration.test_ahead import events
from tests.support.providers import HEADINGS, Does, FakeProvider
from tests.support.requests import assistant, raw, user
from tests.support.server import Client, running_server

MODELS = {
    "weighted": {"context_window": 16_000, "type": "anthropic"},
    "cl100k": {"context_window": 16_000, "type": "openai", "encoding": "cl100k_base"},
    "o200k": {"context_window": 16_000, "type": "openai", "encoding": "o200k_base"},
}
TEXTS = {
    "japanese": "これは{n}番目のメッセージです。設定ファイル config/app{n}.toml を確認してください。エラー E{n}。",
    "russian": "Это сообщение номер {n}, проверьте файл config/app{n}.toml и ошибку E{n}. ",
    "code": "def f_{n}(x):\n    return {{'a': [{n}], 'path': '/usr/lib/x{n}/y.py'}}\n",
    "emoji": "😀🎉{n} שלום עולם مرحبا {n} " * 2,
}


@pytest.fixture
def catalog(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "models.json"
    path.write_text(json.dumps(MODELS))
    return {"catalog": str(path)}


@pytest.fixture
def client(tmp_path: Path, catalog: dict[str, str]) -> Iterator[Client]:
    with running_server(tmp_path, catalog) as client:
        yield client


def grown(client: Client, name: str, model: str, **policy: object) -> Host:
    """A session of a model; it is no ``Host`` of the tests' own model."""
    request = session_service_pb2.CreateSessionRequest(
        session_id=name, model=model_pb2.ModelRef(provider="any", model=model), policy=policy_pb2.Policy(**policy)
    )
    client.session.CreateSession(request)
    host = Host.__new__(Host)
    host.client, host.id = client, name
    return host


def boundary(host: Host, number: int, text: str) -> compaction_service_pb2.PrepareRequestResponse:
    """Forty turns and a run of one request."""
    first = 100 * number
    host.append(
        *(
            m
            for n in range(first, first + 40)
            for m in (user(text.format(n=n) * 5), assistant(text.format(n=n + 50) * 5))
        )
    )
    request = compaction_service_pb2.PrepareRequestRequest(
        session_id=host.id, run_id=f"r{number}", reply=compaction_pb2.REPLY_MODE_NONE, append=raw(user("and now?"))
    )
    prepared = host.client.compaction.PrepareRequest(request)
    host.client.compaction.FinishRun(
        compaction_service_pb2.FinishRunRequest(
            session_id=host.id, run_id=f"r{number}", outcome=compaction_pb2.RUN_OUTCOME_COMPLETED
        )
    )
    return prepared


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("model", MODELS)
def test_v6_an_extractive_summary_keeps_to_its_budget_as_the_session_counts(
    client: Client, model: str, kind: str
) -> None:
    host = grown(client, f"{model}-{kind}", model, background=policy_pb2.BackgroundPolicy(enabled=False))
    prepared = [boundary(host, number, TEXTS[kind]) for number in range(4)]
    assert compaction_pb2.ACTION_SEND_FOLDED in [p.action for p in prepared]
    assert not events(host, "COMPACTION_FAILED"), [str(e) for e in events(host, "COMPACTION_FAILED")]
    assert not any(p.skip for p in prepared)


@pytest.mark.parametrize("model", MODELS)
def test_v6_a_model_s_summary_is_cut_as_the_session_counts(tmp_path: Path, catalog: dict[str, str], model: str) -> None:
    said = TEXTS["emoji"].format(n=7)
    text = "\n\n".join(f"## {head}\n" + "\n".join(f"- {said}" for _ in range(40)) for head in HEADINGS)
    with FakeProvider(otherwise=Does(text=text)) as fake:
        configured = {
            **catalog, "providers.openai.type": "openai", "providers.openai.model": "weighted",
            "providers.openai.base_url": fake.base_url("openai"),
        }  # fmt: skip
        with running_server(tmp_path, configured) as client:
            host = grown(client, model, model, summary=policy_pb2.SummaryPolicy(retries=0))
            prepared = [boundary(host, number, TEXTS["emoji"]) for number in range(2)]
    assert prepared[1].fold.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
    assert not any(p.skip for p in prepared)
