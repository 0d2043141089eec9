"""What a catalog file does to a served session (4.2): limits, counting, prices, and the default."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from foldline.config import ConfigError
from foldline.server import app
from foldline.v1 import (
    admin_service_pb2,
    compaction_service_pb2,
    estimate_service_pb2,
    event_pb2,
    model_pb2,
    pressure_pb2,
    session_service_pb2,
)

from tests.integration.host import Host
from tests.integration.test_boundaries import LONG, codes
from tests.support.requests import assistant, raw, user
from tests.support.server import Client, config_of, refused, running_server

CATALOG: dict[str, Any] = {
    "own": {
        "context_window": 50_000, "type": "anthropic", "input_ceiling": 40_000, "max_output": 5_000,
        "body_cap_bytes": 1_000_000, "encoding": "cl100k_base",
        "prices": {"input": 2.0, "cached_input": 0.5, "output": 8.0, "currency": "EUR"},
    },
    "plain-openai": {"context_window": 50_000},
    "plain-anthropic": {"context_window": 50_000, "type": "anthropic"},
    "plain-google": {"context_window": 50_000, "type": "google"},
    "plain-other": {"context_window": 50_000, "type": "other"},
    "gpt-4o": {"context_window": 64_000},
    "default": {"context_window": 30_000, "type": "google"},
}  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("catalog")
    path = folder / "models.json"
    path.write_text(json.dumps(CATALOG))
    with running_server(folder, {"catalog": str(path)}) as client:
        yield client


def prepare(client: Client, session: str, run_id: str, model: str, **shape: Any) -> Any:
    request = compaction_service_pb2.PrepareRequestRequest(
        session_id=session, run_id=run_id, supersede_open_run=True,
        shape=compaction_service_pb2.RequestShape(model=model_pb2.ModelRef(provider="acme", model=model), **shape),
    )  # fmt: skip
    request.append.CopyFrom(raw(user(LONG)))
    return client.compaction.PrepareRequest(request)


def test_4_2_every_field_of_an_entry_is_used(served: Client, name: str) -> None:
    host = Host(served, name)
    asked = prepare(served, name, "r1", "own", output_reserve_tokens=30_000)
    sent = asked.pressure_sent
    assert (sent.window_tokens, sent.threshold_tokens) == (40_000, 32_000)
    assert sent.output_reserve_tokens == 5_000, "never over the model's own maximum"
    assert sent.input_budget_tokens == 40_000
    assert (sent.body_cap_bytes, sent.byte_limit) == (1_000_000, 800_000)
    usage = {"input_tokens": 200, "cache_read_input_tokens": sent.forecast_tokens, "output_tokens": 100}
    recorded = host.record("r1", host.answer(asked, assistant("ok"), usage=usage))
    cost = (200 * 2.0 + sent.forecast_tokens * 0.5 + 100 * 8.0) / 1e6
    assert recorded.usage.usage.cost == pytest.approx(cost)
    assert recorded.usage.usage.currency == "EUR"
    text = estimate_service_pb2.CountTokensRequest(model=model_pb2.ModelRef(provider="acme", model="own"), text="hi")
    assert served.estimate.CountTokens(text).estimator_name == "cl100k_base"


@pytest.mark.parametrize(
    ("model", "cap"),
    [
        ("plain-openai", 50_000_000), ("plain-anthropic", 9_000_000), ("plain-google", 20_000_000),
        ("plain-other", None), ("never-heard-of", 20_000_000), ("gpt-4o", 50_000_000),
    ],
)  # fmt: skip
def test_4_2_the_type_selects_the_body_cap(served: Client, name: str, model: str, cap: int | None) -> None:
    Host(served, name)
    sent = prepare(served, name, "r1", model).pressure_sent
    assert (sent.body_cap_bytes if sent.HasField("body_cap_bytes") else None) == cap
    own = session_service_pb2.UpdateSessionRequest(session_id=name, policy={"body_cap_bytes": 123_456})
    served.session.UpdateSession(own)
    assert prepare(served, name, "r2", model).pressure_sent.body_cap_bytes == 123_456


@pytest.mark.parametrize(
    ("model", "tokens"), [("plain-openai", 206), ("plain-anthropic", 206 + 150), ("plain-google", 206)]
)
def test_4_2_the_type_selects_the_usage_rules(served: Client, model: str, tokens: int) -> None:
    """A kit that passes on the provider's own count: Anthropic leaves the cached tokens out of it."""
    request = estimate_service_pb2.NormalizeUsageRequest(
        model=model_pb2.ModelRef(provider="acme", model=model),
        usage_json=json.dumps({"inputTokens": 206, "outputTokens": 3, "cachedInputTokens": 150}).encode(),
    )
    assert served.estimate.NormalizeUsage(request).usage.input_tokens == tokens


def test_4_2_an_unknown_model_is_the_default_and_says_so_once_a_session(served: Client, name: str) -> None:
    host = Host(served, name)
    first = prepare(served, name, "r1", "never-heard-of")
    assert first.pressure_sent.window_tokens == 30_000
    said = next(w for w in first.warnings if "never-heard-of" in w.message)
    assert "30000" in said.message
    for run, model in (("r2", "never-heard-of"), ("r3", "nor-of-this"), ("r4", "gpt-4o")):
        assert "UNKNOWN_MODEL" not in codes(prepare(served, name, run, model).warnings)
    told = [
        e for e in host.events() if e.kind == event_pb2.EVENT_KIND_WARNING and "never-heard-of" in e.warning.message
    ]
    assert len(told) == 1
    Host(served, f"{name}-other")
    assert "UNKNOWN_MODEL" in codes(prepare(served, f"{name}-other", "r1", "never-heard-of").warnings)
    Host(served, f"{name}-known")
    assert "UNKNOWN_MODEL" not in codes(prepare(served, f"{name}-known", "r1", "plain-google").warnings)


def test_4_2_the_warning_is_given_once_across_a_restart(tmp_path: Path) -> None:
    given = []
    for run in ("r1", "r2"):
        with running_server(tmp_path) as client:
            if run == "r1":
                Host(client, "s")
            given.append(codes(prepare(client, "s", run, "never-heard-of").warnings))
    assert ["UNKNOWN_MODEL" in g for g in given] == [True, False]


def test_4_2_the_models_are_listed_with_the_file_over_the_built_in(served: Client) -> None:
    request = admin_service_pb2.ListModelsRequest(page_size=1_000)
    listed = {m.model.model: m for m in served.admin.ListModels(request).models}
    own = listed["own"]
    assert (own.context_window, own.input_ceiling, own.max_output, own.body_cap_bytes) == (
        50_000, 40_000, 5_000, 1_000_000,
    )  # fmt: skip
    assert (own.encoding, own.type) == ("cl100k_base", model_pb2.MODEL_TYPE_ANTHROPIC)
    assert (own.prices.input, own.prices.cached_input, own.prices.output, own.prices.currency) == (2.0, 0.5, 8.0, "EUR")
    assert listed["gpt-4o"].context_window == 64_000
    assert listed["default"].context_window == 30_000
    assert listed["gpt-4.1"].context_window == 1_047_576
    plain = listed["plain-google"]
    assert not any(plain.HasField(f) for f in ("input_ceiling", "max_output", "body_cap_bytes", "prices"))


def test_4_2_the_models_are_paged(served: Client) -> None:
    seen: list[str] = []
    request = admin_service_pb2.ListModelsRequest(page_size=7)
    while True:
        page = served.admin.ListModels(request)
        seen += [m.model.model for m in page.models]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert len(seen) == len(set(seen))
    assert {"own", "default", "gpt-4o"} <= set(seen)


def test_4_2_a_reserve_that_leaves_no_room_is_refused_with_the_numbers(served: Client, name: str) -> None:
    host = Host(served, name, output_reserve_tokens=20_000)
    request = compaction_service_pb2.PrepareRequestRequest(session_id=name, run_id="r1", append=raw(user("go")))
    request.shape.model.provider, request.shape.model.model = "openai", "gpt-4"
    found = refused(served.compaction.PrepareRequest, request)
    assert (found.reason, found.metadata["field"]) == ("FIELD_VALIDATION", "policy.output_reserve_tokens")
    assert "20000" in found.message
    assert "8192" in found.message
    assert host.get().totals.rows_total == 0, "a refused call wrote nothing"


def test_4_2_the_estimator_of_a_report_is_that_of_the_sessions_rows(served: Client, name: str) -> None:
    """4.5: rows are measured once, by the vocabulary of the session's model."""
    request = session_service_pb2.CreateSessionRequest(
        session_id=name, model=model_pb2.ModelRef(provider="acme", model="plain-google")
    )
    served.session.CreateSession(request)
    report = prepare(served, name, "r1", "gpt-4o").pressure_sent
    assert report.estimator_name == "weighted_bytes"
    assert report.forecast_source == pressure_pb2.SOURCE_ESTIMATED


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ('{"m": {"context_window": 0}}', ("m.context_window", "0")),
        ('{"m": {"typ": "openai"}}', ("m.typ", "openai")),
        ('{"default": {"prices": {"input": -1, "output": 1}}}', ("default.prices.input", "-1")),
        ('["m"]', ("catalog",)),
        ("{", ("JSON",)),
    ],
)
def test_4_2_a_bad_file_is_refused_by_file_model_and_field(tmp_path: Path, text: str, places: tuple[str, ...]) -> None:
    path = tmp_path / "models.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        app.build(config_of(tmp_path, {"catalog": str(path)}))
    for place in (str(path), *places):
        assert place in str(caught.value)
