"""BoundResults over gRPC: §9 for texts of no session."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from foldline._core import OMISSION, count_tokens
from foldline.v1 import (
    admin_service_pb2,
    compaction_service_pb2,
    model_pb2,
    policy_pb2,
    session_service_pb2,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.host import SMALL
from tests.support.server import Client, refused

LINE = "a line of a long file\n"
UNKNOWN = model_pb2.ModelRef(provider="nobody", model="unheard-of")
Bounded = compaction_service_pb2.BoundResultsResponse


def request(
    *texts: str, limit_bytes: int | None = None, limit_tokens: int | None = None, cut: int | None = None,
    min_bytes: int | None = None, model: model_pb2.ModelRef | None = None,
) -> compaction_service_pb2.BoundResultsRequest:  # fmt: skip
    return compaction_service_pb2.BoundResultsRequest(
        results=[compaction_service_pb2.ResultText(call_id=f"c{n}", text=t) for n, t in enumerate(texts, 1)],
        limit_bytes=limit_bytes, limit_tokens=limit_tokens, model=model,
        bounding=policy_pb2.BoundingPolicy(cut=cut, min_bytes=min_bytes),
    )  # fmt: skip


def sent(texts: Sequence[str], answer: Bounded) -> list[str]:
    """What the host sends: the shortened texts in place of their own."""
    made = list(texts)
    for result in answer.bounded:
        assert result.call_id == f"c{result.offset}"
        assert result.whole_bytes == len(texts[result.offset - 1].encode())
        made[result.offset - 1] = result.text
    return made


def size(texts: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def tokens(texts: Sequence[str]) -> int:
    return sum(count_tokens(text, "o200k_base") for text in texts)


def test_b1_small_results_stay_whole_and_the_others_get_equal_shares(client: Client) -> None:
    texts = ["short", LINE * 900, LINE * 4_000]
    answer = client.compaction.BoundResults(request(*texts, limit_bytes=10_000))
    assert [(r.offset, r.call_id) for r in answer.bounded] == [(2, "c2"), (3, "c3")]
    assert not answer.too_large
    one, other = (r.kept_bytes for r in answer.bounded)
    assert abs(one - other) <= len(LINE)
    for result, text in zip(answer.bounded, texts[1:], strict=True):
        head = text[: result.kept_bytes]
        assert head.endswith("\n")
        marker = f"{result.kept_bytes} of {len(text)} bytes kept; read_result reads the rest]"
        assert result.text == f"{head}\n[result of call {result.call_id} shortened: {marker}"
    assert 9_900 <= size(sent(texts, answer)) <= 10_000


@pytest.mark.parametrize("limits", [{}, {"limit_bytes": 20_000}, {"limit_tokens": 10_000}, {"limit_bytes": 2**63 - 1}])
@pytest.mark.parametrize("model", [None, SMALL, UNKNOWN])
def test_9_what_is_within_the_limits_is_answered_with_nothing(
    client: Client, limits: dict[str, int], model: model_pb2.ModelRef | None
) -> None:
    answer = client.compaction.BoundResults(request("", "x" * 9_000, "y" * 9_000, model=model, **limits))
    assert answer == Bounded()


def test_b1_by_exactly_the_limit_everything_is_whole_and_by_one_less_it_is_not(client: Client) -> None:
    texts = ["é" * 300, LINE * 100, "short"]
    for limit, model in (({"limit_bytes": size(texts)}, None), ({"limit_tokens": tokens(texts)}, SMALL)):
        assert not client.compaction.BoundResults(request(*texts, model=model, **limit)).bounded
        ((name, most),) = limit.items()
        less = client.compaction.BoundResults(request(*texts, model=model, **{name: most - 1}))
        assert [r.offset for r in less.bounded] == [2]


def test_b1_all_results_over_get_the_same(client: Client) -> None:
    texts = [LINE * 1_000] * 20
    answer = client.compaction.BoundResults(request(*texts, limit_tokens=8_000, model=SMALL))
    assert [r.offset for r in answer.bounded] == list(range(1, 21))
    assert len({r.kept_bytes for r in answer.bounded}) == 1
    assert 7_600 <= tokens(sent(texts, answer)) <= 8_000


def test_b1_both_limits_hold(client: Client) -> None:
    # Dense in tokens, dense in bytes.
    texts = ["a1-" * 9_000, "          " * 9_000, "ok"]
    answer = client.compaction.BoundResults(request(*texts, limit_bytes=50_000, limit_tokens=9_000, model=SMALL))
    assert [r.offset for r in answer.bounded] == [1, 2]
    made = sent(texts, answer)
    assert tokens(made) <= 9_000
    assert size(made) <= 50_000
    assert tokens(made) > 8_000 or size(made) > 45_000


@pytest.mark.parametrize("model", [None, UNKNOWN, model_pb2.ModelRef(provider="anthropic", model="claude-sonnet-5")])
def test_b1_without_an_embedded_vocabulary_a_token_is_two_bytes(
    client: Client, model: model_pb2.ModelRef | None
) -> None:
    texts = [LINE * 1_000, "x" * 400]
    by_tokens = client.compaction.BoundResults(request(*texts, limit_tokens=5_000, model=model))
    assert by_tokens == client.compaction.BoundResults(request(*texts, limit_bytes=10_000))
    assert 9_900 <= size(sent(texts, by_tokens)) <= 10_000
    less = client.compaction.BoundResults(request(*texts, limit_bytes=4_000, limit_tokens=5_000, model=model))
    assert less == client.compaction.BoundResults(request(*texts, limit_bytes=4_000))


def test_b8_a_limit_of_nothing_is_too_small_for_anything(client: Client) -> None:
    for limits in ({"limit_bytes": 0}, {"limit_tokens": 0}):
        for model in (None, SMALL):
            answer = client.compaction.BoundResults(request(LINE * 90, "short", "", model=model, **limits))
            assert answer.too_large
            assert [r.offset for r in answer.bounded] == [1]
            text = answer.bounded[0].text
            if model is SMALL and "limit_tokens" in limits:
                assert tokens([text]) <= 256
            else:
                assert size([text]) <= 512
    assert client.compaction.BoundResults(request("", "", limit_bytes=0)) == Bounded()


def test_b8_the_least_share_is_that_of_the_policy(client: Client) -> None:
    texts = [LINE * 1_000, LINE * 1_000, "short"]
    enough = client.compaction.BoundResults(request(*texts, limit_bytes=4_005, min_bytes=2_000))
    assert (enough.too_large, len(enough.bounded)) == (False, 2)
    short = client.compaction.BoundResults(request(*texts, limit_bytes=4_004, min_bytes=2_000))
    assert (short.too_large, len(short.bounded)) == (True, 2)
    assert all(len(r.text) <= 2_000 for r in short.bounded)
    assert not client.compaction.BoundResults(request(*texts, limit_bytes=4_004)).too_large


def test_b2_head_and_tail(client: Client) -> None:
    text = "".join(f"line {n} of many\n" for n in range(2_000))
    for limits in ({"limit_bytes": 2_000}, {"limit_tokens": 600, "model": SMALL}):
        head_tail = policy_pb2.BOUNDING_CUT_HEAD_TAIL
        (result,) = client.compaction.BoundResults(request(text, cut=head_tail, **limits)).bounded
        head, tail = result.text.split("\n[result of")[0].split(OMISSION)
        assert head.startswith("line 0 of many\n")
        assert tail.rstrip().endswith("line 1999 of many")
        assert abs(len(head) - len(tail)) < 100


@pytest.mark.parametrize("cut", [policy_pb2.BOUNDING_CUT_HEAD, policy_pb2.BOUNDING_CUT_HEAD_TAIL])
@pytest.mark.parametrize("limits", [{"limit_bytes": 901}, {"limit_bytes": 902}, {"limit_tokens": 300}])
def test_b2_no_emoji_is_cut_in_two(client: Client, cut: int, limits: dict[str, int]) -> None:
    """XF1, XF2: half a surrogate pair, or half a character, would be no text any more."""
    text = "🧑‍💻🎉" * 3_000
    (result,) = client.compaction.BoundResults(request(text, cut=cut, model=SMALL, **limits)).bounded
    kept = result.text.split("\n[result of")[0]
    assert result.kept_bytes > 300
    assert not set(kept) - set(text) - set(OMISSION)


def test_b2_of_many_results_each_gets_its_marker(client: Client) -> None:
    """As many as a request may hold, two of them of a megabyte."""
    texts = [LINE * (60 if n % 5_000 else 45_000) for n in range(10_000)]
    texts[17] = "short"
    answer = client.compaction.BoundResults(request(*texts, limit_tokens=2_000_000, model=SMALL, min_bytes=0))
    assert len(answer.bounded) == 9_999
    assert not answer.too_large
    assert tokens(sent(texts, answer)) <= 2_000_000


def test_b2_one_call_id_may_come_twice(client: Client) -> None:
    twice = request(LINE * 500, LINE * 600, limit_bytes=2_000)
    for result in twice.results:
        result.call_id = "same"
    assert [(r.offset, r.whole_bytes) for r in client.compaction.BoundResults(twice).bounded] == [
        (1, 11_000),
        (2, 13_200),
    ]


def test_without_results_or_with_too_many_it_is_refused(client: Client) -> None:
    for asked in (request(limit_bytes=9), request(*["x"] * 10_001), request("x", limit_bytes=-1), request("x", cut=9)):
        assert refused(client.compaction.BoundResults, asked).reason == "FIELD_VALIDATION"


def test_it_is_served_and_keeps_nothing(client: Client) -> None:
    client.compaction.BoundResults(request(LINE * 900, limit_bytes=1_000))
    assert not client.session.ListSessions(session_service_pb2.ListSessionsRequest()).sessions
    info = client.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest()).server
    assert "CompactionService/BoundResults" not in info.not_yet


TEXTS = st.lists(
    st.text(max_size=40).flatmap(lambda piece: st.integers(0, 300).map(lambda times: piece * times)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    texts=TEXTS, limit_bytes=st.none() | st.integers(0, 9_000), limit_tokens=st.none() | st.integers(0, 4_000),
    cut=st.sampled_from([policy_pb2.BOUNDING_CUT_HEAD, policy_pb2.BOUNDING_CUT_HEAD_TAIL]),
    model=st.sampled_from([None, SMALL, UNKNOWN]),
)  # fmt: skip
def test_b1_whatever_is_asked_the_answer_is_within_the_limits_or_says_that_it_is_not(
    client: Client, texts: list[str], limit_bytes: int | None, limit_tokens: int | None, cut: int,
    model: model_pb2.ModelRef | None,
) -> None:  # fmt: skip
    asked = request(*texts, limit_bytes=limit_bytes, limit_tokens=limit_tokens, cut=cut, model=model)
    answer = client.compaction.BoundResults(asked)
    made = sent(texts, answer)
    counted = tokens(texts) if model is SMALL else -(-size(texts) // 2)
    over = (limit_bytes is not None and size(texts) > limit_bytes) or (
        limit_tokens is not None and counted > limit_tokens
    )
    assert bool(answer.bounded) == over or answer.too_large
    if answer.too_large:
        return
    assert limit_bytes is None or size(made) <= limit_bytes
    if limit_tokens is not None:
        assert (tokens(made) if model is SMALL else size(made) / 2) <= limit_tokens
