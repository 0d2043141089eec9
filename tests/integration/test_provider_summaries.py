"""Summaries by a provider's model through the whole server, against a provider at the wire (S1-S5, C6, F8)."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from foldline.config import ConfigError
from foldline.server import app
from foldline.v1 import (
    admin_service_pb2,
    compaction_pb2,
    compaction_service_pb2,
    event_pb2,
    model_pb2,
    policy_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
)
from google.protobuf.duration_pb2 import Duration

from tests.integration.host import SMALL, Host
from tests.support.providers import HEADINGS, Does, FakeProvider
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, config_of, refused, running_server, until

LINE = "The parser drops the trailing comma of `config/app.toml` and line {n} then fails with E{n}. " * 4
KEY = "sk-live0123456789abcdefghijkl"
PRICES = {"input": 2.0, "cached_input": 0.5, "output": 8.0, "currency": "USD"}
FAST = model_pb2.ModelRef(provider="openai", model="fast")
_numbers = itertools.count(1)


@dataclass
class World:
    """A server that has a provider, and the clock it lives by."""

    client: Client
    fake: FakeProvider
    now: float = 1_767_225_600.0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("provider")
    with FakeProvider() as fake:
        made = World(None, fake)  # type: ignore[arg-type]
        with running_server(folder, settings(folder, fake), clock=lambda: made.now) as made.client:
            yield made


@pytest.fixture(autouse=True)
def fresh(world: World) -> None:
    world.fake.script.clear()
    world.fake.received.clear()
    world.fake.otherwise = Does()


def settings(folder: Path, fake: FakeProvider) -> dict[str, str]:
    catalog, key = folder / "models.json", folder / "key"
    model = {"context_window": 8000, "type": "openai", "encoding": "o200k_base", "prices": PRICES}
    catalog.write_text(json.dumps({"small": model, "fast": {**model, "context_window": 128_000}}))
    key.write_text(KEY)
    return {
        "catalog": str(catalog), "providers.openai.type": "openai",
        "providers.openai.base_url": fake.base_url("openai"), "providers.openai.api_key_file": str(key),
    }  # fmt: skip


def near(client: Client, *, turns: int = 29, **policy: Any) -> Host:
    """A host a little before T, which is 6 400; a turn is about 190 tokens."""
    summary = {"retries": 0, **policy.pop("summary", {})}
    policy.setdefault("output_reserve_tokens", 100)
    host = Host(client, f"session-{next(_numbers)}", summary=policy_pb2.SummaryPolicy(**summary), **policy)
    host.append(*(m for n in range(turns) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 500)))))
    return host


def turn(host: Host, number: int) -> compaction_service_pb2.PrepareRequestResponse:
    return host.turn(f"run-{number}", LINE.format(n=1000 + number), LINE.format(n=2000 + number))


def due(host: Host, first: int = 0, most: int = 20) -> compaction_service_pb2.PrepareRequestResponse:
    """Turns until a fold was tried, and committed or not."""
    for number in range(first, first + most):
        prepared = turn(host, number)
        if prepared.action == compaction_pb2.ACTION_SEND_FOLDED or prepared.skip:
            return prepared
    raise AssertionError("no fold was due")


def events(host: Host, kind: str) -> list[event_pb2.Event]:
    return [e for e in host.events() if e.kind == event_pb2.EventKind.Value(f"EVENT_KIND_{kind}")]


def ended_once(host: Host) -> bool:
    """Every start has one end (§13)."""
    starts = [e.fold_id for e in events(host, "COMPACTION_STARTED")]
    ends = [e.fold_id for kind in ("COMPLETED", "FAILED") for e in events(host, f"COMPACTION_{kind}")]
    return bool(starts) and sorted(starts) == sorted(ends) and len(set(ends)) == len(ends)


def spent(host: Host, source: str = "PROVIDER") -> session_pb2.SourceUsage:
    wanted = session_pb2.UsageSource.Value(f"USAGE_SOURCE_{source}")
    return next((u for u in host.get().totals.usage if u.source == wanted), session_pb2.SourceUsage())


class TestFolds:
    def test_s1_the_record_says_who_wrote_what_it_carried_and_what_it_cost(self, world: World) -> None:
        host = near(world.client, summary={"fast_model": FAST})
        folded = due(host)
        assert folded.action == compaction_pb2.ACTION_SEND_FOLDED
        (event,) = events(host, "COMPACTION_COMPLETED")
        record = event.compaction_completed.record
        assert record.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
        assert record.bound.kind == compaction_pb2.SOURCE_BOUND_KIND_WHOLE
        assert record.model == FAST
        assert [line[3:] for line in record.summary_text.splitlines() if line.startswith("## ")] == list(HEADINGS)
        assert record.usage.input_tokens > 1000
        paid = (record.usage.input_tokens - 128) * 2.0 + 128 * 0.5 + record.usage.output_tokens * 8.0
        assert record.usage.cost == pytest.approx(paid / 1e6)
        assert record.usage.currency == "USD"
        assert world.fake.calls == 1
        assert world.fake.received[0].body["model"] == "fast"
        assert world.fake.received[0].headers["authorization"] == f"Bearer {KEY}"
        assert "[#1] user" in world.fake.received[0].user
        assert ended_once(host)
        assert host.verify().ok

    def test_s5_totals_sum_what_the_source_used(self, world: World) -> None:
        host = near(world.client)
        due(host)
        due(host, 100, 60)
        usage = spent(host)
        records = [e.compaction_completed.record for e in events(host, "COMPACTION_COMPLETED")]
        assert (usage.calls, usage.folds) == (2, 2)
        assert usage.usage.input_tokens == sum(r.usage.input_tokens for r in records)
        assert usage.usage.output_tokens == sum(r.usage.output_tokens for r in records)
        assert usage.usage.cost == pytest.approx(sum(r.usage.cost for r in records))

    def test_s2_the_requests_model_writes_where_no_other_is_named_and_extractive_calls_none(self, world: World) -> None:
        assert due(near(world.client)).fold.model == SMALL
        source = policy_pb2.SUMMARY_SOURCE_POLICY_EXTRACTIVE
        folded = due(near(world.client, summary={"source": source}))
        assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_EXTRACTIVE
        assert world.fake.calls == 1

    def test_f8_constraints_of_the_user_survive_folds_that_forget_them(self, world: World) -> None:
        blank = "\n\n".join(f"## {head}\n- nothing much" for head in HEADINGS)
        world.fake.otherwise = Does(text=blank)
        host = near(world.client, turns=1)
        host.append(user("You must never drop the orders table."), assistant("Understood."))
        host.append(*(m for n in range(28) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n + 500)))))
        for first in (0, 100):
            folded = due(host, first, 60)
            assert '"You must never drop the orders table."' in folded.fold.summary_text
        assert "You must never drop the orders table." in world.fake.received[1].user
        assert host.verify().ok

    def test_f8_the_next_summary_is_written_with_the_earlier_one(self, world: World) -> None:
        host = near(world.client)
        first = due(host).fold.summary_text
        due(host, 100, 60)
        quoted = world.fake.received[1].user.split("<earlier_summary")[1].split("</earlier_summary")[0]
        assert first.split("## Actions and results")[0].strip() in quoted

    def test_s3_instructions_of_a_manual_fold_reach_the_model(self, world: World) -> None:
        host = near(world.client, summary={"instructions": "Mind the ports."})
        record = host.compact(instructions="Mind the prices.")
        assert record.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
        assert "Mind the ports.\n\nMind the prices." in world.fake.received[0].user

    def test_s4_a_history_over_the_models_window_is_trimmed_or_mapped(self, world: World) -> None:
        """XB1, XB2: the prompt is sized for the model that writes, and the record says how."""
        for oversize, kind in (("TRIM", "TRIMMED"), ("MAP", "MAPPED")):
            world.fake.received.clear()
            host = near(world.client, turns=45, summary={"oversize": policy_pb2.Oversize.Value(f"OVERSIZE_{oversize}")})
            record = host.compact()
            assert record.bound.kind == compaction_pb2.SourceBoundKind.Value(f"SOURCE_BOUND_KIND_{kind}")
            assert (world.fake.calls > 1) == (oversize == "MAP")
            assert spent(host).calls == 1
            assert spent(host).usage.input_tokens == record.usage.input_tokens
            assert host.verify().ok

    def test_f3_rounds_of_a_run_are_folded_with_their_ledger(self, world: World) -> None:
        host = near(world.client, turns=1)
        prepared = host.prepare("long", user("Read every part."))
        for number in range(60):
            made = calls(f"c{number}")
            back = result(f"c{number}", LINE.format(n=number) * 2)
            prepared = host.prepare("long", back, previous_answer=host.answer(prepared, made))
            if prepared.action == compaction_pb2.ACTION_SEND_FOLDED and prepared.fold.scope != (
                compaction_pb2.FOLD_SCOPE_STAGE_1
            ):
                break
        assert prepared.fold.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
        (summary,) = [r.compaction_summary for r in host.active() if r.HasField("compaction_summary")]
        assert "Calls already made for the request above, oldest first:\n- read({})" in summary.text
        assert ended_once(host)
        assert host.verify().ok

    def test_v9_appends_go_on_while_the_provider_writes(self, world: World) -> None:
        gate = threading.Event()
        world.fake.otherwise = Does(gate=gate)
        host = near(world.client)
        with ThreadPoolExecutor(1) as threads:
            folding = threads.submit(host.compact)
            assert world.fake.wait_for_calls(1)
            late = host.append(user("Meanwhile, mind the gap."))
            gate.set()
            record = folding.result(30)
        assert host.offsets()[-1] == late.last_offset
        assert late.last_offset not in range(record.discarded[0].first, record.discarded[-1].last + 1)
        assert host.verify().ok

    def test_l2_a_delete_ends_the_call(self, world: World) -> None:
        gate = threading.Event()
        world.fake.otherwise = Does(gate=gate)
        host = near(world.client)
        with ThreadPoolExecutor(1) as threads:
            folding = threads.submit(refused, world.client.compaction.CompactSession, _compaction(host))
            assert world.fake.wait_for_calls(1)
            world.client.session.DeleteSession(session_service_pb2.DeleteSessionRequest(session_id=host.id), timeout=10)
            refusal = folding.result(10)
        gate.set()
        assert refusal.reason in ("SESSION_NOT_FOUND", "SUMMARIZER_FAILED", "INTERNAL")

    def test_many_sessions_fold_at_once(self, world: World) -> None:
        gate = threading.Event()
        world.fake.otherwise = Does(gate=gate)
        hosts = [near(world.client, turns=20) for _ in range(6)]
        with ThreadPoolExecutor(6) as threads:
            folding = [threads.submit(host.compact) for host in hosts]
            assert world.fake.wait_for_calls(6)
            gate.set()
            assert {f.result(30).summary_source for f in folding} == {row_pb2.SUMMARY_SOURCE_PROVIDER}
        assert all(host.verify().ok and ended_once(host) for host in hosts)


def _compaction(host: Host) -> compaction_service_pb2.CompactSessionRequest:
    return compaction_service_pb2.CompactSessionRequest(session_id=host.id)


class TestFailures:
    """Who writes after one; what each is, and that it is one, is in ``test_provider_wire``."""

    @pytest.mark.parametrize("what", ["blank", "server_error"])
    def test_s2_next_lets_the_extractive_source_write(self, world: World, what: str) -> None:
        world.fake.otherwise = Does(what)
        host = near(world.client, summary={"on_failure": policy_pb2.ON_FAILURE_NEXT})
        folded = due(host)
        assert folded.action == compaction_pb2.ACTION_SEND_FOLDED
        assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_EXTRACTIVE
        assert world.fake.calls == 1
        assert (spent(host).calls, spent(host).folds) == (1, 0)
        assert spent(host, "EXTRACTIVE").folds == 1
        assert ended_once(host)
        due(host, 100, 60)
        assert world.fake.calls == 1, "the provider is still cooling"
        assert host.verify().ok

    def test_s2_rescue_writes_only_what_would_not_fit_otherwise(self, world: World) -> None:
        world.fake.otherwise = Does("server_error")
        host = near(world.client, summary={"on_failure": policy_pb2.ON_FAILURE_RESCUE})
        assert due(host).action == compaction_pb2.ACTION_SEND
        host.append(*(m for n in range(20) for m in (user(LINE.format(n=n)), assistant(LINE.format(n=n)))))
        folded = host.prepare("over", user("and now?"))
        assert folded.action == compaction_pb2.ACTION_SEND_FOLDED
        assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_EXTRACTIVE
        assert world.fake.calls == 1
        assert ended_once(host)
        assert host.verify().ok

    def test_s2_a_provider_that_is_not_there_fails_and_nobody_steps_in(self, tmp_path: Path) -> None:
        catalog = tmp_path / "models.json"
        catalog.write_text(json.dumps({"small": {"context_window": 8000, "encoding": "o200k_base"}}))
        with running_server(tmp_path, {"catalog": str(catalog)}) as client:
            host = near(client, summary={"source": policy_pb2.SUMMARY_SOURCE_POLICY_PROVIDER})
            assert due(host).action == compaction_pb2.ACTION_SEND
            (event,) = events(host, "COMPACTION_FAILED")
            assert event.compaction_failed.failure == compaction_pb2.FAILURE_KIND_SUMMARIZER_FAILED

    @pytest.mark.parametrize(
        ("setting", "value", "message"),
        [
            (
                "source",
                "PROVIDER",
                r"policy\.summary\.source is PROVIDER \(from .+\), which needs a table \[providers\.NAME\]",
            ),
            ("redact", '["(?<=x)y"]', r"policy\.summary\.redact: RE2 does not accept '\(\?<=x\)y': .+ \(from .+\)"),
        ],
    )
    def test_s2_s4_what_would_fail_every_fold_stops_the_start(
        self, tmp_path: Path, setting: str, value: str, message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            app.build(config_of(tmp_path, {f"policy.summary.{setting}": value}))


NOWHERE = model_pb2.ModelRef(provider="elsewhere", model="fast")


class TestFastModel:
    """S2: a fast model of a provider that is not configured; beside it stands one that would write for all others."""

    def test_s2_it_is_refused_wherever_it_is_chosen(self, world: World) -> None:
        bad = policy_pb2.Policy(summary=policy_pb2.SummaryPolicy(fast_model=NOWHERE))
        create = session_service_pb2.CreateSessionRequest(session_id="refused", policy=bad)
        host = near(world.client)
        shape = compaction_service_pb2.RequestShape(model=SMALL)
        for call, request in (
            (world.client.session.CreateSession, create),
            (
                world.client.session.UpdateSession,
                session_service_pb2.UpdateSessionRequest(session_id=host.id, policy=bad),
            ),
            (
                world.client.compaction.CheckPressure,
                compaction_service_pb2.CheckPressureRequest(session_id=host.id, shape=shape, override=bad),
            ),
        ):
            refusal = refused(call, request)
            assert refusal.reason == "FIELD_VALIDATION"
            assert refusal.metadata["field"] == "policy.summary.fast_model"
            assert refusal.metadata["range"] == "a model of openai"
            assert "elsewhere" in refusal.message
        read = session_service_pb2.GetSessionRequest(session_id="refused")
        assert refused(world.client.session.GetSession, read).reason == "SESSION_NOT_FOUND"

    @pytest.mark.parametrize("source", ["AUTO", "PROVIDER", "CURATOR", "EXTRACTIVE"])
    def test_s2_it_is_taken_only_where_no_provider_is_ever_called(self, world: World, source: str) -> None:
        """With a curator the sidecar folds the run's rounds itself, by the provider (F5)."""
        own = policy_pb2.SummarySourcePolicy.Value(f"SUMMARY_SOURCE_POLICY_{source}")
        policy = policy_pb2.Policy(summary=policy_pb2.SummaryPolicy(source=own, fast_model=NOWHERE))
        request = session_service_pb2.CreateSessionRequest(session_id=f"with-{source}", policy=policy)
        if source != "EXTRACTIVE":
            assert refused(world.client.session.CreateSession, request).reason == "FIELD_VALIDATION"
            return
        world.client.session.CreateSession(request)
        auto = policy_pb2.Policy(
            summary=policy_pb2.SummaryPolicy(source=policy_pb2.SUMMARY_SOURCE_POLICY_AUTO),
        )
        change = session_service_pb2.UpdateSessionRequest(session_id=f"with-{source}", policy=auto)
        assert refused(world.client.session.UpdateSession, change).reason == "FIELD_VALIDATION"

    def test_s2_by_the_file_it_stops_the_start(self, tmp_path: Path) -> None:
        with FakeProvider() as fake:
            given = {**settings(tmp_path, fake), "policy.summary.fast_model": '{"provider": "elsewhere", "model": "m"}'}
            message = r"fast_model names the provider elsewhere; configured are openai \(from .+\)"
            with pytest.raises(ConfigError, match=message):
                app.build(config_of(tmp_path, given))
            app.build(config_of(tmp_path, {**given, "policy.summary.source": "EXTRACTIVE"})).stop()

    def test_s2_one_whose_provider_is_gone_fails_its_folds_and_nobody_else_writes(self, tmp_path: Path) -> None:
        with FakeProvider() as fake:
            given = settings(tmp_path, fake)
            both = {key.replace(".openai.", ".elsewhere."): v for key, v in given.items() if ".openai." in key}
            with running_server(tmp_path, {**given, **both}) as client:
                host = near(client, summary={"fast_model": NOWHERE})
            with running_server(tmp_path, {**given, "providers.openai.model": "fast"}) as client:
                host.client = client
                due(host)
                (failed,) = events(host, "COMPACTION_FAILED")
                assert failed.compaction_failed.failure == compaction_pb2.FAILURE_KIND_SUMMARIZER_FAILED
                assert "configured are openai" in failed.compaction_failed.message
                assert not fake.received
                client.session.UpdateSession(
                    session_service_pb2.UpdateSessionRequest(session_id=host.id, labels={"still": "changes"})
                )


class TestBudgets:
    """C6, XA8: attempts that called a paid source, committed or not."""

    def test_paid_folds_an_hour(self, world: World) -> None:
        host = near(world.client, max_paid_folds_per_hour=1, min_boundaries_between=0)
        due(host)
        assert world.fake.calls == 1
        skipped = due(host, 100, 60)
        assert skipped.skip == compaction_pb2.SKIP_REASON_BUDGET
        assert world.fake.calls == 1
        why = "the budget of paid folds is spent: 1 attempts within an hour, max_paid_folds_per_hour is 1"
        assert events(host, "COMPACTION_SKIPPED")[-1].compaction_skipped.message.startswith(f"{why}; transcript ")
        manual = refused(host.compact)
        assert (manual.reason, manual.metadata["skip"], manual.message) == ("NOTHING_TO_FOLD", "BUDGET", why)
        world.now += 3601
        assert due(host, 200).action == compaction_pb2.ACTION_SEND_FOLDED
        assert world.fake.calls == 2
        assert ended_once(host)

    def test_a_failed_attempt_counts(self, world: World) -> None:
        world.fake.otherwise = Does("blank")
        host = near(world.client, max_paid_folds_per_hour=1, cooldown=Duration(seconds=1))
        due(host)
        world.now += 2
        assert due(host, 100).skip == compaction_pb2.SKIP_REASON_BUDGET
        assert world.fake.calls == 1

    @pytest.mark.parametrize("limit", [{"max_tokens_per_day": 100}, {"max_cost_per_day": 0.000001}])
    def test_tokens_and_money_a_day(self, world: World, limit: dict[str, Any]) -> None:
        host = near(world.client, min_boundaries_between=0, **limit)
        due(host)
        assert due(host, 100, 60).skip == compaction_pb2.SKIP_REASON_BUDGET
        ((name, value),) = limit.items()
        assert (
            f" within 24 hours, {name} is {value:.6g};"
            in events(host, "COMPACTION_SKIPPED")[-1].compaction_skipped.message
        )
        world.now += 86_401
        assert due(host, 200).action == compaction_pb2.ACTION_SEND_FOLDED
        assert world.fake.calls == 2

    def test_next_lets_the_extractive_source_write_meanwhile(self, world: World) -> None:
        next_one = policy_pb2.ON_FAILURE_NEXT
        host = near(world.client, max_paid_folds_per_hour=1, min_boundaries_between=0, summary={"on_failure": next_one})
        assert due(host).fold.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
        assert due(host, 100, 60).fold.summary_source == row_pb2.SUMMARY_SOURCE_EXTRACTIVE
        assert world.fake.calls == 1


class TestAhead:
    """A1, A2: a paid source writes ahead of need only where the policy says so."""

    def test_off_by_default_for_a_paid_source(self, world: World) -> None:
        host = near(world.client, turns=25)
        folded = due(host)
        assert folded.fold.trigger == compaction_pb2.TRIGGER_AUTOMATIC
        assert world.fake.calls == 1

    def test_the_host_does_not_wait_for_the_provider(self, world: World) -> None:
        gate = threading.Event()
        world.fake.otherwise = Does(gate=gate)
        host = near(world.client, turns=25, background=policy_pb2.BackgroundPolicy(enabled=True))
        number = 0
        while not world.fake.wait_for_calls(1, 0.2):
            assert turn(host, number).action == compaction_pb2.ACTION_SEND
            number += 1
            assert number < 12
        gate.set()
        assert until(lambda: spent(host).calls == 1)
        folded = due(host, 100)
        assert folded.fold.trigger == compaction_pb2.TRIGGER_BACKGROUND
        assert folded.fold.summary_source == row_pb2.SUMMARY_SOURCE_PROVIDER
        assert world.fake.calls == 1
        assert ended_once(host)
        assert host.verify().ok


def test_settings_show_where_the_key_lies_and_not_the_key(world: World) -> None:
    answer = world.client.admin.GetEffectiveConfig(admin_service_pb2.GetEffectiveConfigRequest())
    told = {entry.key: entry.value for entry in answer.entries}
    assert told["providers.openai.type"] == "openai"
    assert told["providers.openai.api_key_file"]
    assert KEY not in str(answer)
