"""S5: what every API's answers and refusals become, over real HTTP and the official SDKs."""

from __future__ import annotations

import email.utils
import json
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog
from foldline.config import Config, ConfigError
from foldline.domain.enums import FailureKind, SourceBoundKind, SummarySource
from foldline.domain.rows import ModelRef
from foldline.summarize.packing import HEADINGS
from foldline.summarize.providers import ProviderSummarizer, provider_from
from foldline.summarize.providers.sdks import OpenAISdk

from tests.support.providers import Does, FakeProvider, summary_of
from tests.unit.summarize.asked import JUDGES, KINDS, asking, failure, summarizer, taken
from tests.unit.summarize.talk import filler, headings, rows, says, user

KEY = "sk-test-0123456789abcdefghij"
SOURCE = rows(
    *filler(5), user("Never write to the staging database. Now fix src/parser/part_2.py."), says("It is fixed.")
)
REFUSALS = sorted((Path(__file__).parents[2] / "data" / "refusals").glob("*.json"))


def apis_of(file: Path) -> tuple[str, ...]:
    """By which APIs a server refuses."""
    return {"anthropic": ("anthropic",), "google": ("google",), "openai": ("openai", "openai_responses")}.get(
        file.stem, ("openai",)
    )


@pytest.mark.parametrize("kind", KINDS)
class TestEveryApi:
    def test_a_complete_answer_is_a_summary(
        self, kind: str, fake: FakeProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("A_KEY", KEY)
        result = summarizer(fake, kind, api_key_env="A_KEY").summarize(asking(SOURCE))
        assert headings(result.text) == list(HEADINGS)
        assert result.source is SummarySource.PROVIDER
        assert result.model == ModelRef("p", "m")
        assert result.bound.kind is SourceBoundKind.WHOLE
        assert result.durable == ("Never write to the staging database.",)
        assert "Never write to the staging database." in result.text
        (request,) = fake.received
        sent = "x-goog-api-key" if kind == "google" else "authorization"
        assert request.headers[sent].removeprefix("Bearer ") == KEY
        assert "/models/m:" in request.path if kind == "google" else request.body["model"] == "m"
        assert not request.body.get("stream")
        assert not request.body.get("tools")
        assert result.usage is not None
        assert result.usage.input_tokens == len(request.system + request.user) // 4 + 128 * (kind == "anthropic")
        assert result.usage.cached_input_tokens == 128
        assert result.usage.output_tokens
        assert taken(fake)[0] <= 64_000

    @pytest.mark.parametrize("what", ["length", "blank", "refusal", "tool_call", "reasoning"])
    def test_another_answer_is_rejected_with_what_it_used(self, kind: str, what: str, fake: FakeProvider) -> None:
        fake.otherwise = Does(what)
        failed = failure(summarizer(fake, kind), asking(SOURCE))
        assert failed.kind is FailureKind.SUMMARY_REJECTED
        assert failed.model == ModelRef("p", "m")
        assert failed.usage is not None
        assert failed.usage.input_tokens
        assert failed.usage.output_tokens
        assert not failed.context_exceeded
        assert fake.calls == 1

    @pytest.mark.parametrize(("what", "calls"), [("unfinished", 1), ("empty", 1), ("cut", 3), ("drop", 3)])
    def test_an_answer_that_did_not_come_whole_is_a_failure(
        self, kind: str, what: str, calls: int, fake: FakeProvider
    ) -> None:
        fake.otherwise = Does(what)
        failed = failure(summarizer(fake, kind), asking(SOURCE))
        assert (failed.kind, failed.model, fake.calls) == (FailureKind.SUMMARIZER_FAILED, ModelRef("p", "m"), calls)
        assert (failed.usage is not None) == (what == "unfinished")

    @pytest.mark.parametrize(
        "body", [b"null", b"[]", b"{}", b"<html>", b'{"choices": []}', b'{"candidates": 3}', b"\xff"]
    )
    def test_nonsense_is_a_failure(self, kind: str, body: bytes, fake: FakeProvider) -> None:
        fake.otherwise = Does(body=body)
        failed = failure(summarizer(fake, kind), asking(SOURCE))
        assert failed.kind in (FailureKind.SUMMARIZER_FAILED, FailureKind.SUMMARY_REJECTED)
        assert fake.calls == 1

    def test_transient_errors_are_tried_again(self, kind: str, fake: FakeProvider) -> None:
        fake.script = [Does("server_error"), Does("drop"), Does("overloaded"), Does("rate_limited", body=b"{}")]
        result = summarizer(fake, kind).summarize(asking(SOURCE, retries=4))
        assert headings(result.text) == list(HEADINGS)
        assert fake.calls == 5
        assert len({r.user for r in fake.received}) == 1

    def test_a_rate_limit_says_when_to_come_back(self, kind: str, fake: FakeProvider) -> None:
        fake.otherwise = Does("rate_limited", headers={"Retry-After": "120"})
        started = time.monotonic()
        failed = failure(summarizer(fake, kind), asking(SOURCE))
        assert (failed.kind, failed.retry_after, fake.calls) == (FailureKind.SUMMARIZER_FAILED, 120.0, 1)
        assert time.monotonic() - started < 10

    @pytest.mark.parametrize("what", ["context_exceeded", "too_large"])
    def test_a_refusal_for_size_is_told_apart(self, kind: str, what: str, fake: FakeProvider) -> None:
        fake.otherwise = Does(what)
        failed = failure(summarizer(fake, kind), asking(SOURCE))
        assert (failed.kind, failed.context_exceeded, fake.calls) == (FailureKind.SUMMARIZER_FAILED, True, 1)
        assert failed.usage is None

    def test_time_is_bounded_as_a_whole(self, kind: str, fake: FakeProvider) -> None:
        source = summarizer(fake, kind)
        source.summarize(asking(SOURCE))  # The SDK is imported at its first summary.
        for what in ("success", "stall"):
            gate = threading.Event()
            fake.otherwise = Does(what, gate=gate)
            started = time.monotonic()
            failed = failure(source, asking(SOURCE, timeout=0.3))
            gate.set()
            assert (failed.kind, failed.model) == (FailureKind.SUMMARIZER_TIMEOUT, ModelRef("p", "m"))
            assert 0.25 < time.monotonic() - started < 5

    def test_what_nobody_wants_any_more_is_cancelled(self, kind: str, fake: FakeProvider) -> None:
        gate, gone = threading.Event(), threading.Event()
        fake.otherwise = Does(gate=gate)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(failure, summarizer(fake, kind), asking(SOURCE, cancelled=gone.is_set))
            assert fake.wait_for_calls(1)
            gone.set()
            failed = waiting.result(10)
        gate.set()
        assert (failed.kind, failed.model) == (FailureKind.CANCELLED, ModelRef("p", "m"))

    def test_the_key_is_nowhere_but_in_the_request(
        self, kind: str, fake: FakeProvider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """W8, with a provider that repeats the key in its error."""
        monkeypatch.setenv("A_KEY", KEY)
        source = summarizer(fake, kind, api_key_env="A_KEY")
        with structlog.testing.capture_logs() as logs:
            for what in ("unauthorized", "server_error", "drop", "empty", "reasoning"):
                fake.otherwise = Does(what)
                failed = failure(source, asking(SOURCE, retries=0))
                told = "".join(traceback.format_exception(failed)) + failed.detail
                assert KEY not in told
                assert "API key" not in failed.detail
        assert any("[redacted]" in line.get("said", "") for line in logs), "what the provider said is logged"
        assert KEY not in repr(logs) + caplog.text
        assert all(KEY in repr(request.headers) for request in fake.received)

    def test_many_at_once_do_not_meet(self, kind: str, fake: FakeProvider) -> None:
        source = summarizer(fake, kind)
        sources = [rows(*filler(4, f"module{n}"), user(f"Look at lib/module{n}/main.py last.")) for n in range(6)]
        gate = threading.Event()
        fake.otherwise = Does(gate=gate)
        with ThreadPoolExecutor(6) as threads:
            waiting = [threads.submit(source.summarize, asking(own)) for own in sources]
            assert fake.wait_for_calls(6), "they are asked side by side"
            gate.set()
            texts = [w.result(20).text for w in waiting]
        for n, text in enumerate(texts):
            assert f"lib/module{n}/main.py" in text
            assert not any(f"module{other}" in text for other in range(6) if other != n)


class TestRetries:
    @pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
    def test_of_transient_errors_are_bounded(self, status: int, fake: FakeProvider) -> None:
        fake.otherwise = Does("server_error", status=status, body=b"{}")
        for retries in (0, 2):
            before = fake.calls
            failed = failure(summarizer(fake), asking(SOURCE, retries=retries))
            assert (failed.kind, fake.calls - before) == (FailureKind.SUMMARIZER_FAILED, retries + 1)

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
    def test_of_other_errors_are_not_made(self, status: int, fake: FakeProvider) -> None:
        fake.otherwise = Does("server_error", status=status, body=b'{"error": {"message": "no"}}')
        assert failure(summarizer(fake), asking(SOURCE)).detail.startswith(f"p answered {status}")
        assert fake.calls == 1

    def test_wait_as_long_as_the_provider_asks(self, fake: FakeProvider) -> None:
        fake.script = [Does("rate_limited", headers={"retry-after-ms": "150"})]
        started = time.monotonic()
        summarizer(fake).summarize(asking(SOURCE))
        assert fake.calls == 2
        assert time.monotonic() - started >= 0.15

    def test_know_a_date_and_what_is_none(self, fake: FakeProvider) -> None:
        date = email.utils.formatdate(time.time() + 300, usegmt=True)
        fake.script = [Does("overloaded", headers={"Retry-After": date})]
        wanted = failure(summarizer(fake), asking(SOURCE)).retry_after
        assert wanted is not None
        assert 290 < wanted <= 300
        fake.script = [Does("overloaded", headers={"Retry-After": "soon"})]
        summarizer(fake).summarize(asking(SOURCE))
        assert fake.calls == 3

    @pytest.mark.parametrize("kind", ["google", "openai", "openai_responses"])
    def test_read_the_delay_that_a_body_names(self, kind: str, fake: FakeProvider) -> None:
        fake.otherwise = Does("rate_limited")
        failed = failure(summarizer(fake, kind), asking(SOURCE, timeout=5.0))
        assert (failed.retry_after, fake.calls) == (7.0, 1), "7 s are more than there is time for"

    @pytest.mark.parametrize(
        ("said", "seconds"),
        [("1e400", 30 * 86_400.0), ("inf", 30 * 86_400.0), ("-5", 0.0), ("nan", 7.0), ("soon", 7.0),
         ("Fri, 31 Dec 9999 23:59:59 GMT", 30 * 86_400.0), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("", 7.0)],
    )  # fmt: skip
    def test_bound_what_a_header_asks_for(self, said: str, seconds: float, fake: FakeProvider) -> None:
        fake.otherwise = Does("rate_limited", headers={"Retry-After": said})
        failed = failure(summarizer(fake), asking(SOURCE, timeout=5.0, retries=0))
        assert failed.retry_after == seconds

    def test_an_answer_that_filled_the_window_is_told_as_one_too_large(self, fake: FakeProvider) -> None:
        """S7: Anthropic ends it with a reason of its own."""
        shape = {"type": "message", "content": [{"type": "text", "text": "## Goals"}], "usage": {"input_tokens": 9}}
        fake.otherwise = Does(body=json.dumps(shape | {"stop_reason": "model_context_window_exceeded"}).encode())
        failed = failure(summarizer(fake, "anthropic"), asking(SOURCE))
        assert (failed.kind, failed.context_exceeded, fake.calls) == (FailureKind.SUMMARY_REJECTED, True, 1)


class TestRefusals:
    @pytest.mark.parametrize("file", REFUSALS, ids=[file.stem for file in REFUSALS])
    def test_of_real_servers_are_understood(self, file: Path, fake: FakeProvider) -> None:
        """S7 asks whether a refusal was for size; a rate limit never is (4.4)."""
        cases = [case for case in json.loads(file.read_text("utf-8")) if case["status"] >= 400]
        for kind in apis_of(file):
            for case in cases:
                source = summarizer(fake, kind, name=file.stem)
                body = case["body"] if isinstance(case["body"], str) else json.dumps(case["body"])
                fake.otherwise = Does("server_error", status=case["status"], body=body.encode())
                failed = failure(source, asking(SOURCE, retries=0, model=ModelRef(file.stem, "m")))
                assert failed.kind is FailureKind.SUMMARIZER_FAILED
                assert failed.context_exceeded == (case["kind"] in ("CONTEXT_EXCEEDED", "BODY_TOO_LARGE")), case["name"]

    def test_inside_an_answer_of_200_are_understood(self, fake: FakeProvider) -> None:
        fake.otherwise = Does(body=b'event: error\ndata: {"error": {"message": "Context size has been exceeded."}}\n')
        assert failure(summarizer(fake), asking(SOURCE)).context_exceeded

    def test_tell_clients_nothing_of_what_the_provider_said(self, fake: FakeProvider) -> None:
        """W8: the detail reaches the event log, which clients read."""
        fake.otherwise = Does("server_error", status=400, body=b'{"error": {"message": "project 8211 is broke"}}')
        with structlog.testing.capture_logs() as logs:
            failed = failure(summarizer(fake), asking(SOURCE))
        assert "8211" not in failed.detail
        assert "8211" in repr(logs)


class TestOutputLimit:
    def test_a_server_that_knows_the_other_name_is_asked_by_it_from_then_on(self, fake: FakeProvider) -> None:
        fake.script = [Does("unsupported_parameter")]
        source = summarizer(fake)
        source.summarize(asking(SOURCE))
        source.summarize(asking(SOURCE))
        names = [{"max_tokens", "max_completion_tokens"} & r.body.keys() for r in fake.received]
        assert names == [{"max_tokens"}, {"max_completion_tokens"}, {"max_completion_tokens"}]

    def test_openai_itself_is_asked_by_the_newer_name(
        self, fake: FakeProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(OpenAISdk, "url", fake.base_url("openai"))
        monkeypatch.setenv("A_KEY", KEY)
        summarizer(fake, base_url="", api_key_env="A_KEY").summarize(asking(SOURCE))
        assert fake.received[0].body["max_completion_tokens"] == 2 * 1024 + 8192

    @pytest.mark.parametrize("kind", KINDS)
    def test_an_answer_that_took_all_of_it_was_cut_off_whatever_it_is_called(
        self, kind: str, fake: FakeProvider
    ) -> None:
        """S5: llama.cpp's Responses call ``completed`` what they cut off."""
        fake.otherwise = Does(text=summary_of("") + "\n- There is a great deal to say." * 90)
        given = len(str(fake.otherwise.text)) // 4 + 1
        failed = failure(summarizer(fake, kind, max_output=given), asking(SOURCE))
        assert (failed.kind, failed.detail) == (FailureKind.SUMMARY_REJECTED, "p stopped at its length limit")
        result = summarizer(fake, kind, max_output=given + 1).summarize(asking(SOURCE))
        assert headings(result.text) == list(HEADINGS)

    def test_is_what_the_settings_say_and_never_the_window(self, fake: FakeProvider) -> None:
        summarizer(fake, max_output=700).summarize(asking(SOURCE))
        summarizer(fake).summarize(asking(SOURCE, window=6000))
        assert [r.most for r in fake.received] == [700, 1500]


class TestKeys:
    def test_a_file_is_read_anew_for_each_summary(self, fake: FakeProvider, tmp_path: Path) -> None:
        file = tmp_path / "key"
        file.write_text("first-key\n")
        source = summarizer(fake, api_key_file=str(file))
        source.summarize(asking(SOURCE))
        file.write_text("second-key\n")
        source.summarize(asking(SOURCE))
        assert [r.headers["authorization"] for r in fake.received] == ["Bearer first-key", "Bearer second-key"]
        file.unlink()
        failed = failure(source, asking(SOURCE))
        assert (failed.detail, failed.model, fake.calls) == (
            "p: its key cannot be read; the log says why",
            ModelRef(),
            2,
        )

    @pytest.mark.parametrize(
        ("content", "message"),
        [(None, "cannot be read"), (b" \n", "holds no key"), (b"sk secret", "no key has"), (b"sk\xff", "is no text")],
    )
    def test_one_that_is_none_stops_the_start(
        self, fake: FakeProvider, tmp_path: Path, content: bytes | None, message: str
    ) -> None:
        file = tmp_path / "key"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ConfigError, match=message) as refused:
            summarizer(fake, api_key_file=str(file))
        assert "secret" not in str(refused.value)

    def test_a_variable_that_is_not_set_stops_the_start(self, fake: FakeProvider) -> None:
        with pytest.raises(ConfigError, match=r"providers\.p: the environment variable NO_SUCH_KEY holds no key"):
            summarizer(fake, api_key_env="NO_SUCH_KEY")

    def test_w8_a_key_in_the_place_of_its_variables_name_is_not_shown(self, fake: FakeProvider) -> None:
        for key in ("sk-live0123456789abcdef", "gsk_0123456789abcdefABCDEF", "AIzaSy0123456789abcdef", "0" * 32):
            with pytest.raises(ConfigError, match="the environment variable that is named holds no key") as refused:
                summarizer(fake, api_key_env=key)
            assert key not in str(refused.value)

    def test_only_a_server_of_ones_own_goes_without(self, fake: FakeProvider) -> None:
        with pytest.raises(ConfigError, match=r"providers\.p needs api_key_env or api_key_file"):
            summarizer(fake, base_url="")


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (401, {}, "p answered 401 for m: check the key that providers.p.api_key_env or api_key_file names"),
        (403, {}, "p answered 403 for m: check the key that providers.p.api_key_env or api_key_file names"),
        (404, {}, "p answered 404 for m: check the name of the model, and providers.p.base_url"),
        (429, {"Retry-After": "120"}, "p answered 429, and asks to wait 120 s"),
        (400, {}, "p answered 400"),
    ],
)
def test_s5_a_refusal_says_what_to_look_at(fake: FakeProvider, status: int, headers: dict[str, str], said: str) -> None:
    fake.otherwise = Does("server_error", status=status, headers=headers, body=b'{"error": {"message": "no"}}')
    assert failure(summarizer(fake), asking(SOURCE)).detail == said


def test_s5_where_nobody_serves_the_address_is_what_to_look_at(fake: FakeProvider) -> None:
    failed = failure(summarizer(fake, base_url="http://127.0.0.1:1/v1"), asking(SOURCE, retries=0))
    assert failed.detail == ("p could not be reached, or broke off: check providers.p.base_url, and whether it serves")


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [("openai", "openai", "openai"), ("anthropic", "anthropic", "anthropic"), ("google", "google.genai", "google")],
)
def test_a_missing_sdk_stops_the_start_with_the_command_that_installs_it(
    kind: str, module: str, extra: str, fake: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"providers.p needs .* pip install 'foldline\[{extra}\]'"):
        summarizer(fake, kind)


def test_an_sdk_that_breaks_later_fails_the_summary_and_not_the_server(
    fake: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = summarizer(fake)
    monkeypatch.setitem(sys.modules, "openai", None)
    assert isinstance(source, ProviderSummarizer)
    source.load()
    failed = failure(source, asking(SOURCE))
    assert (failed.detail, failed.model, fake.calls) == (
        "p: its SDK cannot be imported; the log says why",
        ModelRef(),
        0,
    )


class TestWhoWrites:
    """S2: the model's provider by name; one with a model of its own writes for the others."""

    def config(self, fake: FakeProvider, **more: str) -> Config:
        flags = {"providers.a.type": "openai", "providers.a.base_url": fake.base_url("openai"), **more}
        return Config.load(env={}, flags={key.replace("__", "."): value for key, value in flags.items()})

    def test_without_a_provider_there_is_no_source(self) -> None:
        assert provider_from(Config(), JUDGES) is None

    def test_the_named_provider_is_asked_for_the_named_model(self, fake: FakeProvider) -> None:
        more = {"providers.b.type": "anthropic", "providers.b.base_url": fake.base_url("anthropic")}
        source = provider_from(self.config(fake, **more), JUDGES)
        assert source is not None
        for provider in ("b", "a"):
            assert source.summarize(asking(SOURCE, model=ModelRef(provider, "m2"))).model == ModelRef(provider, "m2")
        assert [(r.api, r.body["model"]) for r in fake.received] == [("anthropic", "m2"), ("openai", "m2")]

    def test_another_providers_model_is_written_for_by_one_that_has_its_own(self, fake: FakeProvider) -> None:
        source = provider_from(self.config(fake, providers__a__model="small"), JUDGES)
        assert source is not None
        assert source.summarize(asking(SOURCE, model=ModelRef("elsewhere", "m"))).model == ModelRef("a", "small")
        assert source.summarize(asking(SOURCE, model=ModelRef("a", "m"))).model == ModelRef("a", "m")

    def test_nobody_to_ask_is_a_failure_without_a_call(self, fake: FakeProvider) -> None:
        source = provider_from(self.config(fake), JUDGES)
        assert source is not None
        failed = failure(source, asking(SOURCE, model=ModelRef("elsewhere", "m")))
        assert failed.detail == (
            "no provider writes summaries for elsewhere; configured are a: name one of them in summary.fast_model, or "
            "give one a model of its own"
        )
        assert (failed.model, fake.calls) == (ModelRef(), 0)
