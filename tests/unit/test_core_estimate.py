"""Token counts (4.5) are the reference tokenizer's, on every text."""

import base64
import json
import random
from pathlib import Path

import pytest
from foldline import _core

from tests.support.core_oracle import reference, reference_count

DATA = Path(__file__).parents[3] / "shared" / "data"
ENCODINGS = ["cl100k_base", "o200k_base"]
SURROGATES = range(0xD800, 0xE000)
CODE_POINTS = [code for code in range(0x110000) if code not in SURROGATES]

each_encoding = pytest.mark.parametrize("encoding", ENCODINGS)


def assert_exact(text: str, encoding: str) -> None:
    assert _core.count_tokens(text, encoding) == reference_count(text, encoding), repr(text[:200])


@each_encoding
def test_the_vocabulary_is_the_published_one(encoding: str) -> None:
    assert reference(encoding).n_vocab == len(_core.ranks(encoding))


def test_the_embedded_encodings_are_named() -> None:
    assert sorted(_core.encodings()) == ENCODINGS


@each_encoding
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Hello, world!",
        "I'll THEY'RE it'ſ we'Ve 'S 's x's'S ''s 'ſ",
        "HTTPServer iPhone ǅabc ABC日DEf 日本A A日本",
        "e\u0301\u0301A \u0301ABC \u0301\u0301 !\u0301a ʰA aʰ",
        "1234567 ²³¼½ ٣٤٥٦ 1a 12ab",
        "  x \n\n  y\r\n\t z   ",
        "a \n",
        "\u3000\u3000x \u00a0\u00a0y \u2003\u0085",
        " !!! ?//\r\n/\n ./a //b !\n\n",
        "<|endoftext|><|fim_prefix|> <|endofprompt|>",
        "\0\0\0 \U0010ffff\ue000",
        "👩‍🚀👨‍👩‍👧‍👦❤️🏳️‍🌈",
    ],
)
def test_texts_where_the_patterns_branch(text: str, encoding: str) -> None:
    assert_exact(text, encoding)
    assert_exact(text + " and a tail of more than sixteen characters", encoding)
    assert_exact(text * 3, encoding)


@each_encoding
@pytest.mark.parametrize("unit", ["a", " ", "\n", "=", "日", "\u0301", "😀", "ab", "\r\n", "xY1"])
def test_long_single_pieces(unit: str, encoding: str) -> None:
    for many in [*range(1, 70), 127, 128, 129, 1_000, 4_099]:
        assert_exact(unit * many, encoding)
        assert_exact(f" {unit * many}\nx", encoding)


@each_encoding
@pytest.mark.parametrize("letters", ["ab", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJ", "的一是不了人我在有他", "=-#"])
def test_long_random_pieces(letters: str, encoding: str) -> None:
    rng = random.Random(20)
    for size in [10, 17, 100, 1_000, 5_000]:
        assert_exact("".join(rng.choices(letters, k=size)), encoding)


@each_encoding
def test_every_code_point_among_its_neighbours(encoding: str) -> None:
    """Sixteen at a time, each alone and between letters, digits, marks and spaces; the slow test takes them singly."""
    for start in range(0, len(CODE_POINTS), 16):
        chars = [chr(code) for code in CODE_POINTS[start : start + 16]]
        assert_exact("\n".join(f"{char} a{char}b {char}A1{char}'s" for char in chars), encoding)


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@each_encoding
def test_every_code_point_in_two_contexts(encoding: str) -> None:
    for code in CODE_POINTS:
        char = chr(code)
        assert_exact(char, encoding)
        assert_exact(f"a{char}b {char}{char}A'{char} 1{char}\n{char}", encoding)


@each_encoding
@pytest.mark.parametrize("name", ["airline-runs.json", "coding-session.jsonl", "locomo10.json"])
def test_real_inputs(name: str, encoding: str) -> None:
    path = DATA / name
    if not path.exists():
        pytest.skip("the real inputs are not beside the checkout")
    text = path.read_text(encoding="utf-8")
    assert_exact(text, encoding)


@each_encoding
def test_special_token_text_is_counted_as_plain_text(encoding: str) -> None:
    assert _core.count_tokens("<|endoftext|>", encoding) > 1


@each_encoding
@pytest.mark.parametrize("unit", ["a", " ", "\n", "q7", "\u0301", "日", "😀", "=", "ab"])
def test_megabytes_of_anything_are_counted(unit: str, encoding: str) -> None:
    text = unit * (2_000_000 // len(unit))
    assert 0 < _core.count_tokens(text, encoding) <= 2 * len(text.encode())


def test_an_unknown_encoding_is_refused_with_a_reason() -> None:
    for call in (
        lambda: _core.count_tokens("a", "gpt2"),
        lambda: _core.measure_rows([], "gpt2"),
        lambda: _core.tokens_within(["a"], 1, 1, "gpt2"),
        lambda: _core.shorten_many([("a", (None, None, 1), "", "")], "gpt2", False),
        lambda: _core.warm("gpt2"),
        lambda: _core.ranks("gpt2"),
    ):
        with pytest.raises(_core.CoreError, match="gpt2") as raised:
            call()
        assert raised.value.reason == "UNKNOWN_ENCODING"
        assert raised.value.message == str(raised.value)


def test_lone_surrogates_are_no_text() -> None:
    """R2: such text cannot enter; the core raises before it counts anything."""
    with pytest.raises(UnicodeEncodeError):
        _core.count_tokens("a\ud800", "o200k_base")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("prose", "The quick brown fox jumps over the lazy dog, and nobody was surprised by it. " * 50),
        ("code", "def total(rows: list[Row]) -> int:\n    return sum(row.tokens for row in rows)\n" * 40),
        ("json", json.dumps([{"id": i, "name": f"item-{i}", "tags": ["a", "b"], "ok": True} for i in range(200)])),
        ("chinese", "今天天气很好，我们一起去公园散步吧。明天可能会下雨，所以记得带伞。" * 40),
        ("russian", "Сегодня хорошая погода, и мы вместе пойдём гулять в парк. " * 40),
        ("base64", base64.b64encode(random.Random(5).randbytes(3_000)).decode()),
    ],
)
def test_weighted_bytes_are_near_an_exact_count(kind: str, text: str) -> None:
    ratio = _core.weighted_tokens(text) / _core.count_tokens(text, "o200k_base")
    assert 0.7 < ratio < 1.7, f"{kind}: {ratio:.2f}"


def test_weighted_bytes_of_nothing_and_of_little() -> None:
    assert _core.weighted_tokens("") == 0
    assert _core.weighted_tokens(" ") == 1


def test_the_library_is_the_packages_version() -> None:
    from importlib.metadata import version

    assert _core.__version__ == _core.build_info()["version"] == version("foldline")
