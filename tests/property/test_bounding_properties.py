"""§9: no set of results, limits or texts breaks a share."""

import math

from foldline._core import BLOCK_OVERHEAD, ROW_OVERHEAD, count_tokens, measure_rows, weighted_tokens
from foldline.domain.enums import BoundingCut
from foldline.domain.policy import Bounding
from foldline.domain.rows import TextBlock, ToolResultRow, encode_body
from foldline.domain.session import Share
from foldline.engine.bounding import BoundableResult, LongResult, Shortened, plan, shorten
from hypothesis import given
from hypothesis import strategies as st

sizes = st.tuples(st.integers(4, 40_000), st.integers(100, 200_000))
results = st.lists(sizes, max_size=8).map(
    lambda found: [BoundableResult(offset, tokens, size) for offset, (tokens, size) in enumerate(found, 1)]
)
factors = st.sampled_from([0.5, 0.9, 1.0, 1.3, 2.5])
budgets = st.none() | st.integers(-500, 60_000)
caps = st.none() | st.integers(-500, 400_000)


@given(results, budgets, caps, factors, st.integers(0, 3_000))
def test_b1_the_shares_fit_under_both_limits_or_say_that_they_do_not(
    found: list[BoundableResult], budget: int | None, cap: int | None, factor: float, min_bytes: int
) -> None:
    planned = plan(
        found, token_budget=budget, byte_budget=cap, bounding=Bounding(min_bytes=min_bytes), factor=factor,
    )  # fmt: skip
    raw = None if budget is None else math.floor(budget / factor)
    tokens_over = raw is not None and sum(r.tokens for r in found) > raw
    bytes_over = cap is not None and sum(r.bytes for r in found) > cap
    if planned is None:
        assert not tokens_over
        assert not bytes_over
        return
    assert tokens_over or bytes_over
    share = planned.share
    assert (share.tokens is not None, share.bytes is not None) == (tokens_over, bytes_over)
    if share.tokens is not None and planned.fits:
        assert sum(min(r.tokens, share.tokens) for r in found) <= raw  # type: ignore[operator]
    if share.bytes is not None and planned.fits:
        assert sum(min(r.bytes, share.bytes) for r in found) <= cap  # type: ignore[operator]
    over = [
        r.offset
        for r in found
        if (share.tokens is not None and r.tokens > share.tokens) or (share.bytes is not None and r.bytes > share.bytes)
    ]
    assert list(planned.offsets) == over
    if not planned.fits:  # B8: with even the least share a result it would not fit
        least, least_tokens = max(min_bytes, 256), math.ceil(max(min_bytes, 256) / 2 / factor)
        assert (tokens_over and sum(min(r.tokens, least_tokens) for r in found) > raw) or (  # type: ignore[operator]
            bytes_over and sum(min(r.bytes, least) for r in found) > cap  # type: ignore[operator]
        )


texts = st.one_of(
    st.text(max_size=60).flatmap(lambda piece: st.integers(1, 200).map(lambda n: piece * n)),
    st.text(max_size=3_000),
    st.text(alphabet="ab \n", max_size=5_000),
    st.text(alphabet="  \t\n\r'sAa1=漢é", max_size=3_000),
)
encodings = st.sampled_from(["", "o200k_base", "cl100k_base"])
cuts = st.sampled_from(BoundingCut)


def short(text: str, share: Share, cut: BoundingCut, encoding: str) -> Shortened:
    (found,) = shorten([LongResult(text, len(text.encode()), "call_1", "read_file")], share, cut, encoding)
    return found


@given(texts, st.integers(512, 4_000), encodings, cuts, st.sampled_from(["bytes", "tokens", "both"]))
def test_b2_a_shortened_row_is_within_its_share_as_rows_are_measured(
    text: str, size: int, encoding: str, cut: BoundingCut, by: str
) -> None:
    share = Share(
        bytes=None if by == "tokens" else size,
        tokens=None if by == "bytes" else size // 2,
        head_bytes=None if encoding or by == "bytes" else size,
    )
    found = short(text, share, cut, encoding)
    body = encode_body(ToolResultRow(call_id="call_1", content=(TextBlock(found.text),)))
    assert measure_rows([body], encoding or None) == [(found.tokens, found.bytes)]
    if share.bytes is not None:
        assert found.bytes <= share.bytes
    if share.tokens is not None:
        assert found.tokens <= share.tokens
    if share.head_bytes is not None:
        assert len(found.text.encode()) <= share.head_bytes
    assert 0 <= found.kept_bytes <= len(text.encode())


rounds = st.lists(st.tuples(texts, st.integers(0, 400), factors), min_size=1, max_size=8)


@given(rounds, st.integers(600, 4_000), st.integers(2_000, 20_000), encodings, cuts)
def test_b9_within_a_run_shares_shrink_in_steps_and_what_was_sent_stays_a_prefix(
    steps: list[tuple[str, int, float]], budget: int, cap: int, encoding: str, cut: BoundingCut
) -> None:
    """Requests of one run: each adds a result and an answer, and is bounded as the one before allows."""
    bodies: dict[int, str] = {}
    share: Share | None = None
    sent: dict[int, Shortened] = {}
    rest = 0
    for offset, (text, answer, factor) in enumerate(steps, 1):
        bodies[offset] = text
        rest += answer
        measured = measure_rows(
            [encode_body(ToolResultRow("call_1", (TextBlock(t),))) for t in bodies.values()], encoding or None
        )
        found = [BoundableResult(o, *size) for o, size in zip(bodies, measured, strict=True)]
        planned = plan(
            found, token_budget=budget - rest, byte_budget=cap - 4 * rest, bounding=Bounding(), previous=share,
            encoding=encoding, factor=factor,
        )  # fmt: skip
        if planned is None:
            assert not sent
            continue
        for axis in ("bytes", "tokens", "head_bytes"):
            before, after = getattr(share, axis, None), getattr(planned.share, axis)
            if before is None:
                continue
            assert after is not None
            assert after <= before
            if axis == "head_bytes":
                assert after == before or planned.share.tokens != share.tokens  # type: ignore[union-attr]
            else:
                assert after == before or after <= before * 3 // 4 or not planned.fits or after <= 512
        shortened = {o: short(bodies[o], planned.share, cut, encoding) for o in planned.offsets}
        # A result that was shortened once is not whole again, and what it keeps shrinks only with the share.
        assert sent.keys() <= shortened.keys()
        for o, before_ in sent.items():
            after_ = shortened[o]
            if planned.share == share:
                assert after_ == before_
            elif cut is BoundingCut.HEAD:
                raw = bodies[o].encode()
                assert raw.startswith(before_.text.encode()[: before_.kept_bytes])
                assert raw.startswith(after_.text.encode()[: after_.kept_bytes])
        share, sent = planned.share, shortened


@given(texts, st.integers(512, 4_000), st.integers(512, 4_000), encodings)
def test_b9_a_smaller_share_keeps_a_prefix_of_what_a_larger_one_kept(
    text: str, one: int, other: int, encoding: str
) -> None:
    small, large = sorted((one, other))
    for share_of in (lambda size: Share(bytes=size), lambda size: Share(tokens=size)):
        less = short(text, share_of(small), BoundingCut.HEAD, encoding)
        more = short(text, share_of(large), BoundingCut.HEAD, encoding)
        raw = text.encode()
        assert more.text.encode().startswith(raw[: min(less.kept_bytes, more.kept_bytes)])


def test_b2_rows_are_measured_with_the_overheads_that_shorten_leaves_room_for() -> None:
    body = encode_body(ToolResultRow(call_id="call_1", content=(TextBlock("abc"),)))
    ((tokens, size),) = measure_rows([body], None)
    assert size == ROW_OVERHEAD + BLOCK_OVERHEAD + len("call_1") + len("abc")
    assert tokens == 4 + weighted_tokens("abc") == 4 + count_tokens("abc", "o200k_base")
