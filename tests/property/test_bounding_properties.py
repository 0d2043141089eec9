"""§9: no set of results, limits or texts breaks a share."""

from foldline._core import BLOCK_OVERHEAD, ROW_OVERHEAD, count_tokens, measure_rows, weighted_tokens
from foldline.domain.enums import BoundingCut
from foldline.domain.policy import Bounding, Policy
from foldline.domain.pressure import Limits
from foldline.domain.rows import TextBlock, ToolResultRow, encode_body
from foldline.domain.session import Share
from foldline.engine.bounding import BoundableResult, plan, shorten
from hypothesis import given
from hypothesis import strategies as st

sizes = st.tuples(st.integers(4, 40_000), st.integers(100, 200_000))
results = st.lists(sizes, max_size=8).map(
    lambda found: [BoundableResult(offset, tokens, size) for offset, (tokens, size) in enumerate(found, 1)]
)
factors = st.sampled_from([0.5, 0.9, 1.0, 1.3, 2.5])
budgets = st.integers(1_000, 60_000)


def limits(budget: int, cap: int | None) -> Limits:
    return Limits(budget, budget + 100, budget, 100, cap, cap)


caps = st.none() | st.integers(2_000, 400_000)


@given(results, st.integers(0, 30_000), st.integers(0, 100_000), budgets, caps, factors)
def test_b1_the_shares_fit_under_both_limits_or_say_that_they_do_not(
    found: list[BoundableResult], rest_tokens: int, rest_bytes: int, budget: int, cap: int | None, factor: float
) -> None:
    planned = plan(
        found, rest_tokens=rest_tokens, rest_bytes=rest_bytes, limits=limits(budget, cap), policy=Policy(),
        factor=factor,
    )  # fmt: skip
    whole_tokens = rest_tokens + factor * sum(r.tokens for r in found)
    whole_bytes = rest_bytes + sum(r.bytes for r in found)
    if planned is None:
        assert whole_tokens <= budget + 1
        assert cap is None or whole_bytes <= cap
        return
    assert whole_tokens > budget or (cap is not None and whole_bytes > cap)
    if planned.fits:
        assert planned.sent_tokens <= budget + 1
        assert cap is None or planned.sent_bytes <= cap
    over = [
        r.offset
        for r in found
        if (planned.share.tokens is not None and r.tokens > planned.share.tokens)
        or (planned.share.bytes is not None and r.bytes > planned.share.bytes)
    ]
    assert list(planned.offsets) == over


rounds = st.lists(st.tuples(sizes, st.integers(0, 400), factors), min_size=1, max_size=12)


@given(rounds, budgets, st.integers(20_000, 400_000))
def test_b9_within_a_run_shares_only_shrink_and_in_steps(
    steps: list[tuple[tuple[int, int], int, float]], budget: int, cap: int
) -> None:
    """Rounds of a run come one by one; the share of each boundary starts from the one before."""
    found: list[BoundableResult] = []
    share: Share | None = None
    rest = 0
    for offset, ((tokens, size), answer, factor) in enumerate(steps, 1):
        found.append(BoundableResult(offset, tokens, size))
        rest += answer
        planned = plan(
            found, rest_tokens=rest, rest_bytes=4 * rest, limits=limits(budget, cap), policy=Policy(), previous=share,
            factor=factor,
        )  # fmt: skip
        if planned is None:
            assert share is None or not any(r.tokens > (share.tokens or 10**9) for r in found)
            continue
        for axis in ("bytes", "tokens", "head_bytes"):
            before, after = getattr(share, axis, None), getattr(planned.share, axis)
            if before is not None:
                assert after is not None
                assert after <= before
                if axis == "head_bytes":
                    assert after == before or planned.share.tokens != share.tokens  # type: ignore[union-attr]
                else:
                    assert after == before or after <= before * 3 // 4 or not planned.fits or after <= 512
        share = planned.share


texts = st.one_of(
    st.text(max_size=60).flatmap(lambda piece: st.integers(1, 200).map(lambda n: piece * n)),
    st.text(max_size=3_000),
    st.text(alphabet="ab \n", max_size=5_000),
)
policies = st.sampled_from([Policy(), Policy(bounding=Bounding(cut=BoundingCut.HEAD_TAIL))])


@given(texts, st.integers(512, 4_000), st.sampled_from(["", "o200k_base", "cl100k_base"]), policies, st.booleans())
def test_b2_a_shortened_row_is_within_its_share_as_rows_are_measured(
    text: str, size: int, encoding: str, policy: Policy, by_bytes: bool
) -> None:
    share = Share(bytes=size) if by_bytes else Share(tokens=size // 2, head_bytes=None if encoding else size)
    found, kept = shorten(text, share, call_id="call_1", name="read_file", policy=policy, encoding=encoding)
    body = encode_body(ToolResultRow(call_id="call_1", content=(TextBlock(found),)))
    ((tokens, row_bytes),) = measure_rows([body], encoding or None)
    if share.bytes is not None:
        assert row_bytes <= share.bytes
    if share.tokens is not None:
        assert tokens <= share.tokens
    if share.head_bytes is not None:
        assert len(found.encode()) <= share.head_bytes
    assert 0 <= kept <= len(text.encode())
    assert found.encode().decode() == found


@given(texts, st.integers(512, 4_000), st.integers(512, 4_000))
def test_b9_a_smaller_share_keeps_a_prefix_of_what_a_larger_one_kept(text: str, one: int, other: int) -> None:
    small, large = sorted((one, other))
    arguments = {"call_id": "call_1", "name": "read_file", "policy": Policy()}
    _, less = shorten(text, Share(bytes=small), **arguments)  # type: ignore[arg-type]
    found, more = shorten(text, Share(bytes=large), **arguments)  # type: ignore[arg-type]
    raw = text.encode()
    assert found.encode().startswith(raw[: min(less, more)])
    assert shorten(text, Share(bytes=large), **arguments) == (found, more)  # type: ignore[arg-type]


def test_b2_rows_are_measured_with_the_overheads_that_shorten_leaves_room_for() -> None:
    body = encode_body(ToolResultRow(call_id="call_1", content=(TextBlock("abc"),)))
    ((tokens, size),) = measure_rows([body], None)
    assert size == ROW_OVERHEAD + BLOCK_OVERHEAD + len("call_1") + len("abc")
    assert tokens == 4 + weighted_tokens("abc") == 4 + count_tokens("abc", "o200k_base")
