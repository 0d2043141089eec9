"""4.4: the wordings of providers, each in the shape that it arrives in."""

import json
from pathlib import Path

import pytest
from foldline.domain.enums import RefusalKind
from foldline.domain.models import COUNT_MAX
from foldline.engine.refusals import classify

FIXTURES = Path(__file__).parents[2] / "data" / "refusals"
CASES = [
    pytest.param(case, id=f"{path.stem}: {case['name']}")
    for path in sorted(FIXTURES.glob("*.json"))
    for case in json.loads(path.read_text())
]
PROVIDERS = {"openai", "anthropic", "google", "bedrock", "vllm", "llama_cpp", "ollama", "lm_studio", "openrouter"}


def body_of(case: dict) -> bytes:
    body = case["body"]
    return (body if isinstance(body, str) else json.dumps(body)).encode()


@pytest.mark.parametrize("case", CASES)
def test_4_4_wordings_give_kind_count_and_limit(case: dict) -> None:
    found = classify(case["status"], body_of(case))
    assert (found.kind, found.named_tokens, found.named_limit) == (
        RefusalKind(case["kind"]), case["tokens"], case["limit"]
    )  # fmt: skip


def test_4_4_every_named_provider_has_an_overflow_fixture() -> None:
    for provider in PROVIDERS:
        cases = json.loads((FIXTURES / f"{provider}.json").read_text())
        assert any(case["kind"] == "CONTEXT_EXCEEDED" for case in cases), provider


@pytest.mark.parametrize("case", [c for c in CASES if c.values[0]["kind"] == "CONTEXT_EXCEEDED"])
def test_4_4_the_words_count_whatever_wraps_the_body(case: dict) -> None:
    """Gateways put a provider's body into a field of their own, as JSON or as text."""
    plain = classify(case["status"], body_of(case))
    text = body_of(case).decode()
    wrapped = json.dumps({"detail": {"upstream": text}}).encode()
    assert classify(case["status"], wrapped) == plain
    assert classify(0, text.encode()).kind == RefusalKind.CONTEXT_EXCEEDED


@pytest.mark.parametrize("case", [c for c in CASES if c.values[0]["kind"] == "RATE_LIMITED"])
def test_4_4_a_rate_limit_is_never_taken_for_size(case: dict) -> None:
    """Also not with a status that says otherwise, as inside a stream or behind a gateway."""
    for status in (case["status"], 0, 200, 400, 413, 500):
        if case["body"] or status == 429:
            assert classify(status, body_of(case)).kind == RefusalKind.RATE_LIMITED


def test_4_4_retry_after_is_kept_where_a_retry_helps() -> None:
    assert classify(429, b"", 12.5).retry_after == 12.5
    assert classify(529, b"", 3.0).retry_after == 3.0
    assert classify(413, b"", 3.0).retry_after is None


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe\x00", b"{", b"[" * 100_000, b'{"a":' * 50_000, b"null", b"12", b"[" * 8_000 + b"]" * 8_000,
    ],
)  # fmt: skip
def test_4_4_a_body_that_is_no_json_is_read_as_text(body: bytes) -> None:
    assert classify(400, body).kind == RefusalKind.INVALID_REQUEST


def test_4_4_a_prompt_echoed_far_behind_the_error_is_not_read() -> None:
    body = b'{"error": "bad field", "input": "' + b"x" * 70_000 + b' prompt is too long"}'
    assert classify(400, body).kind == RefusalKind.INVALID_REQUEST


def test_xb15_a_count_of_thousands_of_digits_is_held_to_what_the_contract_can_say() -> None:
    body = f"maximum context length is {'9' * 5000} tokens, however you requested {'9' * 21} tokens"
    found = classify(400, body.encode())
    assert found.kind is RefusalKind.CONTEXT_EXCEEDED
    assert (found.named_tokens, found.named_limit) == (COUNT_MAX, COUNT_MAX)
