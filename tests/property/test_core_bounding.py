"""Searches for a share or a cut that breaks B1 or B2."""

import msgspec
from foldline import _core
from hypothesis import given
from hypothesis import strategies as st

TEXTS = st.one_of(
    st.text(max_size=200),
    st.text("ab \n", max_size=400),
    st.text("日本語\n", max_size=100),
    st.text("=-", max_size=300),
    st.text("  \t\n\r'sAa1=漢é\u01c5\u00aa\u0301\x01\"", max_size=300),
    st.text(max_size=12).flatmap(lambda piece: st.integers(1, 60).map(lambda times: piece * times)),
)


def largest_level(sizes: list[int], budget: int) -> int:
    """The highest share at which everybody's part still fits the budget; the obvious version, unit by unit."""
    level = 0
    while level < max(sizes, default=0) and sum(min(size, level + 1) for size in sizes) <= budget:
        level += 1
    return level


@given(st.lists(st.integers(0, 200), max_size=10), st.integers(0, 1_500), st.integers(0, 60))
def test_b1_shares_are_the_highest_equal_level(sizes: list[int], budget: int, minimum: int) -> None:
    level = largest_level(sizes, budget)
    cut = [size for size in sizes if size > level]
    shares = _core.water_fill(sizes, budget, minimum)
    if cut and level < minimum:
        assert shares is None
        return
    assert shares is not None
    assert sum(shares) == min(budget, sum(sizes))
    for size, share in zip(sizes, shares, strict=True):
        assert share == size if size <= level else level <= share <= level + 1


Limits = tuple[int | None, int | None, int | None]
BEFORE, AFTER = "\n[kept ", " of it]"
ENCODINGS = st.sampled_from([None, "cl100k_base", "o200k_base"])


def fast(text: str, limits: Limits, encoding: str | None, head_tail: bool) -> tuple[str, int, int | None, int]:
    (found,) = _core.shorten_many([(text, limits, BEFORE, AFTER)], encoding, head_tail)
    return found


def escaped(text: str) -> int:
    return len(msgspec.json.encode(text)) - 2


def tokens_of(text: str, encoding: str | None) -> int:
    return _core.count_tokens(text, encoding) if encoding else _core.weighted_tokens(text)


def fits(text: str, limits: Limits, encoding: str | None) -> bool:
    in_json, plain, tokens = limits
    return (
        (in_json is None or escaped(text) <= in_json)
        and (plain is None or len(text.encode()) <= plain)
        and (tokens is None or tokens_of(text, encoding) <= tokens)
    )


def by_trying(text: str, limits: Limits, encoding: str | None) -> str:
    """The head that is kept, the obvious version: the longest with which the widest marker fits, then its last line."""
    widest = f"{BEFORE}{len(text.encode())}{AFTER}"
    for end in range(len(text), -1, -1):
        if fits(text[:end] + widest, limits, encoding):
            break
    raw = text[:end].encode()
    if end == len(text):
        return text
    line = raw.rfind(b"\n", len(raw) - len(raw) // 10)
    return raw[: line + 1].decode() if line >= 0 else text[:end]


@given(TEXTS, st.none() | st.integers(0, 500), st.none() | st.integers(0, 400))
def test_b2_a_head_by_bytes_is_the_one_that_trying_all_finds(text: str, in_json: int | None, plain: int | None) -> None:
    kept = by_trying(text, (in_json, plain, None), None)
    size = len(kept.encode())
    found = f"{kept}{BEFORE}{size}{AFTER}" if kept else f"{BEFORE}0{AFTER}".lstrip()
    assert fast(text, (in_json, plain, None), None, False) == (found, size, None, escaped(found))


@given(TEXTS, st.integers(0, 120), st.none() | st.integers(0, 500), ENCODINGS)
def test_b1_a_head_by_tokens_fits_and_is_about_as_long_as_trying_all_finds(
    text: str, tokens: int, in_json: int | None, encoding: str | None
) -> None:
    limits = (in_json, None, tokens)
    found, kept, counted, size = fast(text, limits, encoding, False)
    assert (counted, size) == (tokens_of(found, encoding), escaped(found))
    if kept == 0:
        assert found == f"{BEFORE}0{AFTER}".lstrip()
    else:
        assert fits(found, limits, encoding)
        assert found == text.encode()[:kept].decode() + f"{BEFORE}{kept}{AFTER}"
    longest = len(by_trying(text, limits, encoding).encode())
    assert kept >= longest - longest // 8 - 24


def test_b2_what_costs_no_tokens_is_no_reason_to_try_for_ever() -> None:
    """Single spaces weigh nothing, so that some text is left of a budget of nothing."""
    for text in (" ", " a b c", "- - - -" * 50, " " + "x" * 90):
        for head_tail in (False, True):
            for tokens in range(12):
                found, kept, _, _ = fast(text, (None, None, tokens), None, head_tail)
                assert kept == 0 or tokens_of(found, None) <= tokens


@given(TEXTS, st.none() | st.integers(0, 120), st.none() | st.integers(0, 500), ENCODINGS)
def test_b2_head_and_tail_fit_and_stand_around_the_omission(
    text: str, tokens: int | None, plain: int | None, encoding: str | None
) -> None:
    limits = (None, plain, tokens)
    found, kept, counted, size = fast(text, limits, encoding, True)
    assert counted == (None if tokens is None else tokens_of(found, encoding))
    assert size == escaped(found)
    marker = f"{BEFORE}{kept}{AFTER}"
    if kept == 0:
        assert found == marker.lstrip()
        return
    assert fits(found, limits, encoding)
    assert found.endswith(marker)
    head, tail = kept_parts(found.removesuffix(marker), text)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert kept == len(head.encode()) + len(tail.encode())
    if fits(f"{text}{BEFORE}{len(text.encode())}{AFTER}", limits, encoding):
        assert kept == len(text.encode())


def kept_parts(kept: str, text: str) -> tuple[str, str]:
    """Head and tail of a cut; of several omission marks, the first between parts of the text."""
    places = [at for at in range(len(kept)) if kept.startswith(_core.OMISSION, at)]
    for at in places:
        head, tail = kept[:at], kept[at + len(_core.OMISSION) :]
        if text.startswith(head) and text.endswith(tail):
            return head, tail
    return kept, ""


@given(
    st.lists(TEXTS, max_size=8), st.integers(0, 600), st.integers(0, 40), st.sampled_from(["cl100k_base", "o200k_base"])
)
def test_b1_counting_no_further_than_the_share_gives_the_same_shares(
    texts: list[str], budget: int, least: int, encoding: str
) -> None:
    whole = [_core.count_tokens(text, encoding) for text in texts]
    found = _core.tokens_within(texts, budget, least, encoding)
    shares = _core.water_fill(whole, budget, 0)
    assert _core.water_fill(found, budget, 0) == shares
    assert shares is not None
    for size, counted, share in zip(whole, found, shares, strict=True):
        assert counted == size if size <= max(share, least) else max(share, least) < counted <= size
