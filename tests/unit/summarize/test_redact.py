"""S4: masking of secrets."""

from __future__ import annotations

import time

import pytest
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.policy import DEFAULT_REDACT, MASK
from foldline.summarize.redact import Redactor


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdEFGH1234ijkl5678",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_0123456789abcdefghijABCDEFGHIJ",
        "AIzaSyA-1234567890abcdefghijklmnopqrstu",
        "xoxb-123456789012-abcdefghij",
        "Bearer eyJhbGciOiJIUzI1NiIs.payload-part_1",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nAAAA\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_s4_the_default_patterns_mask_known_secrets(secret: str) -> None:
    assert Redactor(DEFAULT_REDACT).mask(f"before {secret} after é") == f"before {MASK} after é"


def test_s4_text_without_secrets_is_unchanged() -> None:
    text = "The task-runner asks for a bearer of news; AKIA is a word, sk-short too. 日本語"
    assert Redactor(DEFAULT_REDACT).mask(text) == text


def test_s4_overlapping_matches_are_masked_whole() -> None:
    """The mask of one pattern must not leave the rest of another's match standing."""
    assert Redactor(["abc", "bcdef", "fgh"]).mask("xabcdefghx") == f"x{MASK}x"


def test_s4_neighbouring_matches_and_empty_matches() -> None:
    assert Redactor(["a+", "x*"]).mask("aab xx b") == f"{MASK}b {MASK} b"
    assert Redactor(["", "x*"]).mask("abc") == "abc"
    assert Redactor([]).mask("sk-abcdefghijklmnopqrst") == "sk-abcdefghijklmnopqrst"


def test_s4_flags_of_one_pattern_do_not_reach_the_next() -> None:
    assert Redactor(["(?i)abc", "DEF"]).mask("ABC def DEF") == f"{MASK} def {MASK}"


@pytest.mark.parametrize("pattern", ["(?<=a)b", "(a", r"(\w)\1", "a{2000}"])
def test_s4_a_pattern_that_re2_does_not_accept_is_named(pattern: str) -> None:
    with pytest.raises(FoldlineError) as refused:
        Redactor([*DEFAULT_REDACT, pattern])
    assert refused.value.reason is Reason.FIELD_VALIDATION
    assert refused.value.metadata["field"] == "summary.redact"
    assert refused.value.metadata["value"] == pattern


def test_s4_a_pattern_that_explodes_elsewhere_is_linear_here() -> None:
    started = time.process_time()
    assert Redactor([r"(a+)+$", r"(x|xx)*y"]).mask("a" * 50_000 + "b" + "x" * 50_000).endswith("x")
    assert time.process_time() - started < 5
