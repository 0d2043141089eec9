"""4.4: the wordings of providers, each in the shape that it arrives in.

A fixture names where its shape was seen: ``issue`` (a public thread), ``code`` (public source), ``docs`` (a provider's
own pages), ``made`` (an edge of ours).
"""

import json
from pathlib import Path
from typing import Any

import pytest
from foldline.domain.enums import RefusalKind
from foldline.domain.models import COUNT_MAX
from foldline.engine.refusals import RETRY_MAX, classify

FIXTURES = Path(__file__).parents[2] / "data" / "refusals"
CASES = [
    pytest.param(case, id=f"{path.stem}: {case['name']}")
    for path in sorted(FIXTURES.glob("*.json"))
    for case in json.loads(path.read_text())
]
NAMED = {"openai", "anthropic", "google", "bedrock", "vllm", "llama_cpp", "ollama", "lm_studio", "openrouter"}
"""Providers that 4.4 names."""


def of_kind(kind: str) -> list[Any]:
    return [c for c in CASES if c.values[0]["kind"] == kind]


def body_of(case: dict[str, Any]) -> bytes:
    body = case["body"]
    return (body if isinstance(body, str) else json.dumps(body)).encode()


@pytest.mark.parametrize("case", CASES)
def test_4_4_wordings_give_kind_count_limit_and_delay(case: dict[str, Any]) -> None:
    found = classify(case["status"], body_of(case), case.get("provider", ""))
    assert (found.kind, found.named_tokens, found.named_limit) == (
        RefusalKind(case["kind"]), case["tokens"], case["limit"]
    )  # fmt: skip
    assert found.retry_after == pytest.approx(case.get("retry_after"))


def test_4_4_every_named_provider_has_an_overflow_fixture_that_was_seen() -> None:
    for provider in NAMED:
        cases = json.loads((FIXTURES / f"{provider}.json").read_text())
        assert any(c["kind"] == "CONTEXT_EXCEEDED" and c["source"] != "made" for c in cases), provider


def test_4_4_every_fixture_says_where_its_shape_was_seen() -> None:
    assert {c.values[0]["source"] for c in CASES} <= {"issue", "code", "docs", "made"}


@pytest.mark.parametrize("case", CASES)
def test_4_4_layout_and_order_of_a_body_say_nothing(case: dict[str, Any]) -> None:
    """XB15: the same JSON written in another way is the same refusal."""
    if isinstance(case["body"], str):
        return
    expected = classify(case["status"], body_of(case))
    for layout in ({"indent": 3}, {"separators": (",", ":")}, {"sort_keys": True}, {"ensure_ascii": False}):
        written = json.dumps(case["body"], **layout)  # type: ignore[arg-type]
        assert classify(case["status"], f"\r\n {written}\n".encode()) == expected
        assert classify(case["status"], written.encode("utf-16")) == expected


@pytest.mark.parametrize("case", of_kind("CONTEXT_EXCEEDED"))
def test_4_4_the_words_count_whatever_wraps_the_body(case: dict[str, Any]) -> None:
    """Gateways put a provider's body into a field of their own, as JSON or as text, or into a stream."""
    text = body_of(case).decode()
    if not text:
        return
    plain = classify(case["status"], body_of(case))
    wrapped = json.dumps({"detail": {"upstream": text}})
    assert classify(case["status"], wrapped.encode()) == plain
    assert classify(case["status"], json.dumps({"error": wrapped}).encode()) == plain
    assert classify(200, f": ping\n\nevent: error\ndata: {wrapped}\n\n".encode()) == plain
    assert classify(0, text.encode()).kind == RefusalKind.CONTEXT_EXCEEDED


@pytest.mark.parametrize("case", of_kind("CONTEXT_EXCEEDED"))
def test_4_4_a_body_cut_off_behind_its_words_keeps_its_kind(case: dict[str, Any]) -> None:
    if isinstance(case["body"], str):
        return
    padded = json.dumps({"error": case["body"], "trace": "0" * 300})[:-250].encode()
    assert classify(case["status"], padded).kind == RefusalKind.CONTEXT_EXCEEDED


@pytest.mark.parametrize("case", of_kind("RATE_LIMITED"))
def test_4_4_a_rate_limit_is_never_taken_for_size(case: dict[str, Any]) -> None:
    """Also not with a status that says otherwise, as inside a stream or behind a gateway."""
    for status in (case["status"], 0, 200, 400, 413, 500):
        if case["body"] or status == 429:
            assert classify(status, body_of(case)).kind == RefusalKind.RATE_LIMITED


@pytest.mark.parametrize("kind", ["CONTEXT_EXCEEDED", "BODY_TOO_LARGE"])
def test_4_4_size_is_never_taken_for_a_rate_limit(kind: str) -> None:
    for case in of_kind(kind):
        for status in (0, 200, 400, 413, 422, 500):
            found = classify(status, body_of(case.values[0]), case.values[0].get("provider", ""))
            assert found.kind is not RefusalKind.RATE_LIMITED, case.id


ECHOED = "prompt is too long: 9 tokens > 8 maximum; context_length_exceeded; rate limit reached; request too large"


@pytest.mark.parametrize(
    "body",
    [
        {"detail": [{"loc": ["body", "messages"], "msg": "Field required", "input": ECHOED}]},
        {"detail": [{"msg": "Input should be a string", "input": {"messages": [{"content": [{"text": ECHOED}]}]}}]},
        {"error": {"message": "bad request"}, "request": {"body": {"prompt": ECHOED}}},
        {"error": {"message": "the tool failed to parse", "failed_generation": ECHOED}},
        {"error": {"message": "blocked", "metadata": {"flagged_input": ECHOED}}},
        {"choices": [{"message": {"content": ECHOED}}], "error": {"message": "stop"}},
        {"error": {"message": f"Invalid value: '{ECHOED}'. Supported values are: 'a' and 'b'."}},
        {"error": {"message": "bad"}, "output": [{"content": [{"type": "output_text", "text": ECHOED}]}]},
    ],
)
def test_4_4_text_of_a_user_or_tool_inside_an_error_says_nothing(body: dict[str, Any]) -> None:
    whole = json.dumps(body)
    assert classify(400, whole.encode()).kind is RefusalKind.INVALID_REQUEST
    assert classify(400, json.dumps({"raw": whole}).encode()).kind is RefusalKind.INVALID_REQUEST


def test_4_4_an_echo_that_the_body_is_cut_off_in_says_nothing() -> None:
    for opening in ('{"detail": [{"msg": "bad", "input": "', '{"error": {"message": "x"}, "messages": [{"content": "'):
        assert classify(400, (opening + ECHOED).encode()).kind is RefusalKind.INVALID_REQUEST
        assert classify(400, (opening + "x" * 70_000 + ECHOED).encode()).kind is RefusalKind.INVALID_REQUEST


def test_4_4_a_bare_400_says_nothing_of_size_but_where_the_provider_says_no_more() -> None:
    assert classify(400, b"").kind is RefusalKind.INVALID_REQUEST
    assert classify(400, b" \n", "Cerebras").kind is RefusalKind.CONTEXT_EXCEEDED
    assert classify(400, b'{"message": "bad tools"}', "cerebras").kind is RefusalKind.INVALID_REQUEST
    assert classify(400, b"", "openai").kind is RefusalKind.INVALID_REQUEST


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Please try again in 6.2s.", 6.2),
        ("Please try again in 950ms.", 0.95),
        ("Please try again in 12 milliseconds.", 0.012),
        ("Please try again in 1m30.5s. Visit", 90.5),
        ("Please try again in 2h3m.", 7_380.0),
        ("please retry after 22 seconds.", 22.0),
        ("retrying in about 5 minutes", 300.0),
        ("Limit resets in 1d2h.", 93_600.0),
        ("try again in 3 months", None),
        ("try again later", None),
        ("try again in 0s", 0.0),
        ("try again in 99999999d", RETRY_MAX),
    ],
)
def test_4_4_delays_that_words_name(text: str, seconds: float | None) -> None:
    assert classify(429, text.encode()).retry_after == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        ({"details": [{"retryDelay": "34.074824224s"}]}, 34.074824224),
        ({"retry_after": 12}, 12.0),
        ({"retry_after_seconds": "7.5"}, 7.5),
        ({"metadata": {"headers": {"retry-after": "26"}}}, 26.0),
        ({"retryDelay": "soon"}, None),
        ({"retry_after": True}, None),
        ({"retry_after": 1e300}, None),
        ({"retry_after": -3}, None),
    ],
)
def test_4_4_delays_that_fields_name(body: dict[str, Any], seconds: float | None) -> None:
    assert classify(429, json.dumps({"error": body}).encode()).retry_after == pytest.approx(seconds)


def test_4_4_a_delay_is_kept_where_a_retry_helps() -> None:
    wait = b'{"error": {"message": "x", "retry_after": 3}}'
    assert [classify(status, wait).retry_after for status in (429, 503, 529, 500)] == [3.0] * 4
    assert [classify(status, wait).retry_after for status in (400, 401, 413)] == [None] * 3


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe\x00", b"{", b"[" * 100_000, b'{"a":' * 50_000, b"null", b"12", b"[" * 8_000 + b"]" * 8_000, b"\x00",
        b'"' * 9_999, b"\x1f\x8b\x08\x00\x00", b"<" * 50_000, b'{"input": "' * 5_000, b"data: {\n" * 5_000,
        b'"\\ud83d"', b"Invalid value: '" * 4_000,
    ],
)  # fmt: skip
def test_4_4_a_body_that_is_nothing_is_no_refusal_for_size(body: bytes) -> None:
    assert classify(400, body).kind == RefusalKind.INVALID_REQUEST


def test_xb15_a_count_of_thousands_of_digits_is_held_to_what_the_contract_can_say() -> None:
    body = f"maximum context length is {'9' * 5000} tokens, however you requested {'9' * 21} tokens"
    found = classify(400, body.encode())
    assert found.kind is RefusalKind.CONTEXT_EXCEEDED
    assert (found.named_tokens, found.named_limit) == (COUNT_MAX, COUNT_MAX)
