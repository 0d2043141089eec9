"""Digests (§1, V7) are recomputed with nothing but SHA-256 and the documented layout."""

import hashlib

import pytest
from foldline import _core


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def test_v7_digest_of_rows() -> None:
    offsets, bodies = [1, 2**63], [b"", b'{"type":"user"}']
    expected = hashlib.sha256(b"foldline.rows.v1")
    for offset, body in zip(offsets, bodies, strict=True):
        expected.update(u64(offset) + u64(len(body)) + body)
    assert _core.digest_rows(offsets, bodies) == expected.digest()


def test_a_revision_is_chained_to_its_parent() -> None:
    parent, payload = bytes(range(32)), [b"row", b"", b"x" * 100_000]
    expected = hashlib.sha256(b"foldline.chain.v1" + parent + b"\x05")
    for part in payload:
        expected.update(u64(len(part)) + part)
    assert _core.chain(parent, 5, payload) == expected.digest()


def test_bad_lengths_are_refused() -> None:
    with pytest.raises(_core.CoreError) as raised:
        _core.chain(b"short", 1, [])
    assert raised.value.reason == "DIGEST_LENGTH"
    with pytest.raises(_core.CoreError) as raised:
        _core.digest_rows([1, 2], [b""])
    assert raised.value.reason == "LENGTH_MISMATCH"
