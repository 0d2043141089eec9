"""Vectors from an OpenAI-compatible endpoint, over real HTTP and gRPC: it is asked, is down, changes, lies (M8)."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from foldline.config import ConfigError
from foldline.domain.errors import FoldlineError, Reason
from foldline.memory import backfill, endpoint
from foldline.memory.endpoint import EmbedderDown, Endpoint
from foldline.server import app
from foldline.v1 import admin_service_pb2, compaction_pb2, event_pb2, warning_pb2

from tests.integration.host import Host
from tests.integration.test_agent_tools import search
from tests.integration.test_ahead import cross, near
from tests.integration.test_ahead import settings as ahead_settings
from tests.integration.test_provider_hostile import Says, Wire, bomb, endless, head, whole
from tests.support.embeddings import FakeEmbeddings
from tests.support.requests import assistant, user
from tests.support.server import Client, config_of, running_server, served_process, until


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr(endpoint, "REST_SECONDS", 0.05)


@pytest.fixture
def fake() -> Iterator[FakeEmbeddings]:
    with FakeEmbeddings() as fake:
        yield fake


def settings(fake: FakeEmbeddings, **more: Any) -> dict[str, Any]:
    return {
        "memory.embedder": "openai",
        "memory.model": "text-embedding-small",
        "memory.base_url": fake.base_url,
        **{f"memory.{key}": value for key, value in more.items()},
    }


def folded(client: Client, session_id: str = "s", word: str = "walnut") -> Host:
    host = Host(client, session_id, auto_compact=False)
    host.append(
        *(
            message
            for n in range(12)
            for message in (user(f"The parrot number {n} likes {word} {n}. " * 8), assistant(f"Noted {n}."))
        )
    )
    host.compact()
    return host


def more(host: Host, text: str = "more") -> None:
    """Another fold, whose rows hold a text."""
    said = [message for n in range(8) for message in (user(f"{text} {n}, " * 30), assistant(f"Yes {n}."))]
    host.append(*said)
    host.compact()


def pending(host: Host) -> int:
    return int(host.get().totals.memory_pending)


def embedded(host: Host) -> bool:
    return until(lambda: pending(host) == 0, 20)


def told(host: Host) -> list[tuple[int, int, str]]:
    """What the event log says of memory: pending, quarantined, message."""
    found = [e.memory_degraded for e in host.events() if e.kind == event_pb2.EVENT_KIND_MEMORY_DEGRADED]
    assert all(e.recovered == (e.message == "memory is whole again") for e in found)
    return [(e.pending_entries, e.quarantined_entries, e.message) for e in found]


def test_m8_entries_are_embedded_by_the_endpoint_and_found_by_meaning(tmp_path: Path, fake: FakeEmbeddings) -> None:
    """Identity and width are those of the model; texts go in batches; nothing is told where nothing was wrong."""
    with running_server(tmp_path, settings(fake)) as client:
        host = folded(client)
        assert embedded(host)
        answer = host.search("parrot likes walnut")
        assert not answer.degraded
        assert answer.hits[0].semantic_score > 0.3
        assert told(host) == []
        info = client.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest()).server
        assert info.embedder == "openai/text-embedding-small"
    assert {a.model for a in fake.asked} == {"text-embedding-small"}
    assert all(a.body["encoding_format"] == "float" for a in fake.asked)
    assert fake.asked[0].texts == (endpoint.PROBE,)
    assert max(len(a.texts) for a in fake.asked) > 8


def test_xl16_the_width_is_asked_of_the_model(fake: FakeEmbeddings) -> None:
    for width in (1, 48, 1024, 3072):
        fake.width = width
        made = Endpoint("m", fake.base_url, lambda: "k")
        assert (made.width, made.identity) == (width, f"openai/m/{width}")
        assert len(made.embed(["a text"])[0]) == width * 4


def test_vectors_come_in_the_order_of_their_texts_and_of_unit_length(fake: FakeEmbeddings) -> None:
    made = Endpoint("m", fake.base_url, lambda: "k")
    alone = [made.embed([text])[0] for text in ("one", "two", "three")]
    fake.change = lambda answer: {**answer, "data": answer["data"][::-1]}
    assert made.embed(["one", "two", "three"]) == alone


def test_w8_the_key_is_read_for_each_call_and_shown_to_nobody(
    tmp_path: Path, fake: FakeEmbeddings, capfd: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_text("sk-first\n")
    with running_server(tmp_path, settings(fake, api_key_file=str(key))) as client:
        host = folded(client)
        assert embedded(host)
        key.write_text("sk-second")
        host.search("walnut")
        assert {a.key for a in fake.asked} == {"sk-first", "sk-second"}
        assert fake.asked[-1].key == "sk-second"
        config = client.admin.GetEffectiveConfig(admin_service_pb2.GetEffectiveConfigRequest())
        fake.status = 401
        reason = host.search("walnut").degraded_reason
        fake.status = 0
    shown = f"{config}{reason}{host.id}{capfd.readouterr()}"
    assert "sk-first" not in shown
    assert "sk-second" not in shown
    assert "api_key_file" in shown


@pytest.mark.parametrize(
    "how", ["refuses connections", "answers 500", "answers 429", "answers 401", "answers nonsense"]
)
def test_xl19_an_endpoint_that_is_down_at_write_holds_up_nothing_and_is_made_up_for(
    tmp_path: Path, fake: FakeEmbeddings, how: str
) -> None:
    """M8: pending, lexical at once, degraded, told once; embedded when it is back, which is told too."""
    with running_server(tmp_path, settings(fake)) as client:
        first = folded(client, "first")
        assert embedded(first)
        _break(fake, how)
        host = folded(client, "second")
        found = host.search("walnut 3")
        assert found.degraded
        assert found.hits
        assert pending(host) > 0
        assert until(lambda: len(told(host)) == 1), told(host)
        assert until(lambda: len(told(first)) == 1), "its searches go by words alone too"
        waiting, quarantined, message = told(host)[0]
        assert (waiting, quarantined) == (pending(host), 0)
        assert "embedding endpoint" in message
        time.sleep(0.5)
        assert len(told(host)) == 1, "once, however often it is tried"
        _mend(fake, how)
        assert embedded(host)
        assert until(lambda: len(told(host)) == 2)
        assert told(host)[1] == (0, 0, "memory is whole again")
        assert until(lambda: not host.search("walnut 3").degraded)
        assert until(lambda: told(first)[-1][2] == "memory is whole again")
        assert host.verify().ok


def _break(fake: FakeEmbeddings, how: str) -> None:
    if how == "refuses connections":
        fake.go_down()
    elif how == "answers nonsense":
        fake.change = lambda answer: {"vectors": []}
    else:
        fake.status = int(how.split()[1])


def _mend(fake: FakeEmbeddings, how: str) -> None:
    fake.status, fake.change = 0, lambda answer: answer
    if how == "refuses connections":
        fake.come_back()


def test_m8_an_endpoint_that_is_down_at_start_is_waited_for(tmp_path: Path, fake: FakeEmbeddings) -> None:
    fake.go_down()
    with running_server(tmp_path, settings(fake)) as client:
        host = folded(client)
        assert until(lambda: len(told(host)) == 1)
        found = host.search("walnut")
        assert found.hits
        assert "cannot be reached" in found.degraded_reason
        fake.come_back()
        assert embedded(host)
        assert until(lambda: not host.search("walnut").degraded)
        assert [message for _, _, message in told(host)][1:] == ["memory is whole again"]


def test_m8_a_fold_whose_entries_wait_for_an_endpoint_says_so(tmp_path: Path, fake: FakeEmbeddings) -> None:
    """MEMORY_PENDING, beside the summary; nothing of the kind where the endpoint answers."""
    with running_server(tmp_path, {**ahead_settings(tmp_path), **settings(fake)}) as client:
        host = near(client, "fine", background={"enabled": False})
        prepared = cross(host)
        assert prepared.action == compaction_pb2.ACTION_SEND_FOLDED
        assert warning_pb2.WARNING_CODE_MEMORY_PENDING not in [w.code for w in prepared.warnings]
        assert embedded(host)
        fake.go_down()
        assert host.search("parser").degraded
        host = near(client, "waits", background={"enabled": False})
        assert warning_pb2.WARNING_CODE_MEMORY_PENDING in [w.code for w in cross(host).warnings]


def test_m8_searches_notice_an_endpoint_that_went_away_when_nothing_is_pending(
    tmp_path: Path, fake: FakeEmbeddings
) -> None:
    with running_server(tmp_path, settings(fake)) as client:
        host = folded(client)
        assert embedded(host)
        assert not host.search("walnut").degraded
        fake.go_down()
        assert host.search("walnut").degraded
        assert until(lambda: len(told(host)) == 1)
        assert told(host)[0][0] == 0
        fake.come_back()
        assert until(lambda: len(told(host)) == 2)
        assert until(lambda: not host.search("walnut").degraded)


def test_m8_a_slow_endpoint_holds_up_neither_appends_nor_answers(
    tmp_path: Path, fake: FakeEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search waits a while for the vector of its query, then goes on by words; the next one does not wait."""
    monkeypatch.setattr(endpoint, "QUERY_SECONDS", 0.3)
    monkeypatch.setattr(endpoint, "REST_SECONDS", 60.0)
    with running_server(tmp_path, settings(fake)) as client:
        host = folded(client)
        assert embedded(host)
        fake.gate.clear()
        started = time.monotonic()
        assert host.search("walnut").degraded
        first = time.monotonic() - started
        started = time.monotonic()
        for _ in range(5):
            assert host.search("walnut").hits
        rest = time.monotonic() - started
        assert 0.3 <= first < 2
        assert rest < 1
        more(host, "on we go")
        assert pending(host) > 0
        assert host.search("on we go").hits
        fake.gate.set()
        assert embedded(host)


def test_m8_k5_a_tool_that_finds_nothing_says_that_memory_is_degraded(tmp_path: Path, fake: FakeEmbeddings) -> None:
    """Why, as the RPC says it; and no more of it once memory is whole again."""
    with running_server(tmp_path, settings(fake)) as client:
        host = folded(client)
        assert embedded(host)
        assert "degraded" not in search(host, "walnut", before="2001-01-01")
        fake.status = 500
        nothing = search(host, "xylophone")
        why = host.search("xylophone").degraded_reason
        assert nothing.startswith("Nothing was found.")
        assert why
        assert nothing.endswith(f" Memory is degraded: {why}.")
        fake.status = 0
        assert until(lambda: not host.search("xylophone").degraded)
        assert "degraded" not in search(host, "xylophone", before="2001-01-01")


def test_xl17_xl18_another_width_embeds_anew_and_answers_meanwhile(tmp_path: Path, fake: FakeEmbeddings) -> None:
    """Degraded meanwhile, never empty, told when it begins and when it ends."""
    with running_server(tmp_path, settings(fake)) as client:
        host = folded(client)
        assert embedded(host)
    fake.width = 96
    with running_server(tmp_path, settings(fake)) as client:
        host.client = client
        fake.gate.clear()
        more(host, "more")
        assert until(lambda: len(fake.asked) > 0 and fake.asked[-1].texts == (endpoint.PROBE,))
        found = host.search("walnut 3")
        assert found.degraded
        assert found.hits
        fake.gate.set()
        assert embedded(host)
        assert until(lambda: not host.search("walnut 3").degraded)
        assert host.search("walnut 3").hits[0].semantic_score > 0.3
        assert until(lambda: len(told(host)) == 2)
        assert "embedded anew" in told(host)[0][2]
        assert told(host)[1] == (0, 0, "memory is whole again")


def test_xl18_a_mismatch_while_it_runs_is_the_same_and_an_error_of_its_own(
    tmp_path: Path, fake: FakeEmbeddings
) -> None:
    """The model behind the endpoint became another between two calls."""
    with running_server(tmp_path, settings(fake)) as client:
        host = folded(client)
        assert embedded(host)
        fake.width = 32
        more(host, "more")
        assert until(lambda: told(host) != [] and told(host)[-1][2] == "memory is whole again", 20)
        assert pending(host) == 0
        assert until(lambda: not host.search("walnut 3").degraded)
        assert host.search("walnut 3").hits[0].semantic_score > 0.3
    made = Endpoint("m", fake.base_url, lambda: "k")
    fake.width = 33
    with pytest.raises(FoldlineError) as caught:
        made.embed(["x"])
    assert caught.value.reason is Reason.EMBEDDING_MISMATCH
    assert caught.value.metadata == {"expected": "32", "actual": "33"}


def test_xl17_a_search_notices_another_width_when_nothing_is_pending(tmp_path: Path, fake: FakeEmbeddings) -> None:
    """No fold comes that would have something embedded: the query is what meets the other model."""
    with running_server(tmp_path, settings(fake)) as client:
        host = folded(client)
        assert embedded(host)
        fake.width = 32
        found = host.search("walnut 3")
        assert found.degraded
        assert found.hits
        assert until(lambda: told(host) != [] and told(host)[-1][2] == "memory is whole again", 20)
        assert until(lambda: not host.search("walnut 3").degraded)
        assert host.search("walnut 3").hits[0].semantic_score > 0.3


def test_m9_a_text_that_the_endpoint_refuses_is_quarantined_alone(tmp_path: Path, fake: FakeEmbeddings) -> None:
    """With all that came in the same call embedded; told by number."""
    fake.refuses = "walnut 5"
    with running_server(tmp_path, settings(fake)) as client:
        host = folded(client)
        assert embedded(host)
        assert until(lambda: len(told(host)) == 1)
        assert told(host)[0][:2] == (0, 1)
        assert "could not be embedded" in told(host)[0][2]
        assert host.search("walnut 5").hits[0].text.startswith("The parrot number 5")
        assert not host.search("walnut 4").degraded
        fake.refuses = "walnut more"
        more(host, "walnut more")
        assert embedded(host)
        assert until(lambda: len(told(host)) == 2)
        assert told(host)[1][1] > 1


@pytest.mark.parametrize(
    "lie",
    [
        lambda answer: {**answer, "data": answer["data"][:-1]},
        lambda answer: {**answer, "data": [{**d, "index": 7} for d in answer["data"]]},
        lambda answer: {**answer, "data": [{**d, "embedding": [float("nan")] * 48} for d in answer["data"]]},
        lambda answer: {**answer, "data": [{**d, "embedding": [0.0] * 48} for d in answer["data"]]},
        lambda answer: {**answer, "data": [{**d, "embedding": "AAAA"} for d in answer["data"]]},
        lambda answer: [],
    ],
    ids=["one is missing", "wrong index", "no numbers", "no direction", "base64", "a list"],
)
def test_m9_an_endpoint_that_answers_nonsense_fails_nothing_else(
    tmp_path: Path, fake: FakeEmbeddings, lie: Any
) -> None:
    with running_server(tmp_path, settings(fake)) as client:
        host = folded(client, "honest")
        assert embedded(host)
        fake.change = lie
        other = folded(client, "other")
        assert other.search("walnut 3").hits
        assert until(lambda: told(other) != [])
        fake.change = lambda answer: answer
        assert until(lambda: not host.search("walnut 3").degraded)
        assert host.search("walnut 3").hits[0].semantic_score > 0.3
        assert other.verify().ok


def test_a_whole_refusal_is_no_fault_of_the_texts(fake: FakeEmbeddings) -> None:
    made = Endpoint("m", fake.base_url, lambda: "k")
    for status in (401, 403, 404, 408, 429, 500, 503):
        fake.status = status
        with pytest.raises(EmbedderDown, match=str(status)):
            made.embed(["x"])
    for status in (400, 413, 422):
        fake.status = status
        with pytest.raises(ValueError, match=str(status)):
            made.embed(["x"])
        with pytest.raises(EmbedderDown):
            Endpoint("m", fake.base_url, lambda: "k")


def test_the_log_says_once_what_is_wrong(tmp_path: Path, fake: FakeEmbeddings) -> None:
    fake.status = 503
    with structlog.testing.capture_logs() as logs, running_server(tmp_path, settings(fake)) as client:
        host = folded(client)
        assert until(lambda: len(told(host)) == 1)
        for _ in range(5):
            host.search("walnut")
        time.sleep(0.6)
        fake.status = 0
        assert embedded(host)
    said = [log for log in logs if log["log_level"] in ("error", "warning")]
    assert [log["event"] for log in said] == [backfill.UNAVAILABLE]
    assert said[0]["problem"] == "the embedding endpoint answered 503"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"memory.model": ""}, "memory.embedder is openai, which needs memory.model"),
        ({"memory.base_url": ""}, "memory needs api_key_env or api_key_file"),
        ({"memory.api_key_env": "NO_SUCH_VARIABLE"}, "memory: the environment variable NO_SUCH_VARIABLE holds no key"),
        ({"memory.api_key_file": "/nowhere/key"}, "memory: the file of api_key_file cannot be read"),
        ({"memory.api_key_env": "A", "memory.api_key_file": "b"}, "by api_key_env and by api_key_file: one of them"),
        ({"memory.base_url": "http://user:pw@h/v1"}, "memory.base_url is"),
    ],
)
def test_settings_that_cannot_hold_are_refused_at_start(
    tmp_path: Path, fake: FakeEmbeddings, wrong: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        app.build(config_of(tmp_path, {**settings(fake), **wrong}))
    assert "pw@" not in str(caught.value)


def test_a_stop_does_not_wait_for_an_endpoint_that_hangs(
    tmp_path: Path, fake: FakeEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "STOP_SECONDS", 0.2)
    with running_server(tmp_path, settings(fake)) as client:
        host = folded(client)
        assert embedded(host)
        fake.gate.clear()
        more(host, "more")
        asked = len(fake.asked)
        assert until(lambda: len(fake.asked) >= asked)
        started = time.monotonic()
    assert time.monotonic() - started < 3


def test_the_variable_is_read_by_the_process_that_serves(tmp_path: Path, fake: FakeEmbeddings) -> None:
    given = [f"{key}={value}" for key, value in settings(fake, api_key_env="EMBEDDING_KEY").items()]
    args = [arg for item in given for arg in ("--set", item)]
    served = served_process(tmp_path, *args, env={"EMBEDDING_KEY": "sk-variable"})
    with served as process, Client(process.wait_ready()) as client:
        assert embedded(folded(client))
    assert {a.key for a in fake.asked} == {"sk-variable"}


def test_s4_secrets_reach_no_endpoint_neither_with_entries_nor_with_a_query(
    tmp_path: Path, fake: FakeEmbeddings
) -> None:
    """The server's patterns, or the session's own; words still find what is masked, since they stay here."""
    key, badge = "sk-live0123456789abcdefghijkl", "badge-4711"
    with running_server(tmp_path, settings(fake)) as client:
        own = Host(client, "own", auto_compact=False, summary={"redact": {"patterns": ["badge-[0-9]+"]}})
        ordinary = Host(client, "ordinary", auto_compact=False)
        for host in (own, ordinary):
            more(host, f"The key {key} opens the door of {badge},")
            assert embedded(host)
            host.search(f"which door does {key} open for {badge}?")
            assert host.search(badge).hits[0].text.count(badge), "memory keeps the text as it was"
    sent = [(text, i) for i, asked in enumerate(fake.asked) for text in asked.texts]
    assert any("[redacted] opens the door" in text for text, _ in sent)
    assert not any(key in text for text, _ in sent if badge in text), "the ordinary session hides keys of providers"
    assert any(badge in text for text, _ in sent), "and nothing else"
    assert any("opens the door of [redacted]," in text for text, _ in sent), "the other hides its own"
    assert any("which door does [redacted]" in text for text, _ in sent)


@pytest.mark.parametrize("value", [[0.0] * 48, [1e300] * 48, [1e-45] * 48, []])
def test_m9_an_endpoint_that_answers_what_is_no_vector_costs_no_entry_its_own(
    tmp_path: Path, fake: FakeEmbeddings, value: list[float]
) -> None:
    """It is down, whatever it was asked: nothing is quarantined, no vector replaced, and all is made up for."""

    def nothing(answer: dict[str, Any]) -> dict[str, Any]:
        return {**answer, "data": [{**item, "embedding": value} for item in answer["data"]]}

    with running_server(tmp_path, settings(fake)) as client:
        first = folded(client, "first")
        assert embedded(first)
        fake.change = nothing
        second = folded(client, "second")
        assert until(lambda: "no vector" in second.search("walnut").degraded_reason)
        assert second.search("walnut").hits
        fake.change = lambda answer: answer
        assert embedded(second)
        for host in (first, second):
            assert host.search("the parrot likes walnut", limit=1).hits[0].semantic_score > 0.3


def test_m8_an_endpoint_is_not_taken_on_before_it_answers_with_a_vector(fake: FakeEmbeddings) -> None:
    for value in ([], [0.0] * 48, [1e300]):
        fake.change = lambda answer, value=value: {**answer, "data": [{"index": 0, "embedding": value}]}
        with pytest.raises(EmbedderDown, match="no vector"):
            Endpoint("m", fake.base_url, lambda: "k")


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()


def dripping(wire: Wire, made: socket.socket, path: str) -> None:
    wire.send(made, head(Transfer_Encoding="chunked"))
    while True:
        wire.send(made, b"1\r\n \r\n")
        time.sleep(0.05)


def asked_by(wire: Wire, says: Says) -> str:
    """What a call that the wire answers so fails of."""
    wire.says = says
    with pytest.raises(EmbedderDown) as failed:
        Endpoint("m", f"{wire.root}/v1", lambda: "sk-key")
    return failed.value.message


@pytest.mark.parametrize("says", [endless, bomb])
def test_m8_an_answer_without_end_is_given_up_and_fills_no_memory(wire: Wire, says: Says) -> None:
    assert "more than" in asked_by(wire, says)
    assert wire.sent < 64 << 20, "as much as was read, and what the sockets hold"


def test_m8_an_answer_that_drips_is_given_up_when_its_time_is_over(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SECONDS", 0.5)
    started = time.monotonic()
    assert "too long" in asked_by(wire, dripping)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_w8_an_answer_that_points_elsewhere_is_not_followed(wire: Wire, status: str) -> None:
    other = Wire()
    try:
        why = asked_by(wire, whole(b"", status, Location=f"{other.root}/v1/embeddings"))
        assert status[:3] in why
        assert other.requests == [], "neither texts nor the key went there"
    finally:
        other.close()


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"x":' * 100_000, b'{"data": "\xff"}', b"null", b'{"data": [{}]}'])
def test_m8_what_is_no_answer_of_the_api_is_a_failure(wire: Wire, body: bytes) -> None:
    assert "something else than a vector a text" in asked_by(wire, whole(body))


def test_m8_an_endpoint_that_turns_hostile_leaves_the_search_by_words(
    tmp_path: Path, fake: FakeEmbeddings, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "SECONDS", 0.3)
    wire.says = dripping
    with running_server(tmp_path, {**settings(fake), "memory.base_url": f"{wire.root}/v1"}) as client:
        host = folded(client)
        started = time.monotonic()
        answer = host.search("walnut")
        assert answer.degraded
        assert answer.hits
        assert time.monotonic() - started < 10
