"""Vectors from any endpoint that speaks OpenAI's embeddings API, by OpenAI's SDK (M8)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from foldline.access import HTTP, TooLong, sdk
from foldline.domain.errors import FoldlineError, Reason
from foldline.memory.vectors import is_unit

BASE_URL = "https://api.openai.com/v1"
SECONDS = 60.0
"""What a call in the background may take."""
QUERY_SECONDS = 2.0
"""What a search waits for the vector of its query before it goes on by words alone."""
REST_SECONDS = 10.0
"""How long searches do not ask again after a call of theirs failed, so that not each of them waits."""
PROBE = "How wide are the vectors of this model?"
_TEXT_AT_FAULT = (400, 413, 422)


class EmbedderDown(FoldlineError):
    """EMBEDDER_UNAVAILABLE that may pass: the same call may succeed later."""

    def __init__(self, message: str, embedder: str) -> None:
        super().__init__(Reason.EMBEDDER_UNAVAILABLE, message, embedder=embedder)


class _Item(msgspec.Struct):
    embedding: list[float]
    index: int


class _Body(msgspec.Struct):
    data: list[_Item]


class Endpoint:
    """``Embedder`` over HTTP. The model is asked how wide its vectors are; nothing is guessed.

    Args:
        key: reads the key for every call, so that it can be rotated.

    Raises:
        EmbedderDown: it does not answer, or with what is no vector, or refuses the key or the model.
    """

    batch = 32

    def __init__(self, model: str, base_url: str, key: Callable[[], str]) -> None:
        self._model, self._key = model, key
        self._sdk = sdk("openai")
        self._client = self._sdk.OpenAI(
            api_key=key(), base_url=base_url or BASE_URL, max_retries=0, timeout=SECONDS,
            http_client=self._sdk.DefaultHttpxClient(**HTTP),
        )  # fmt: skip
        self._rests_until, self._last = 0.0, EmbedderDown("", model)
        self.width = 0
        (vector,) = self._vectors([PROBE], SECONDS)
        if not is_unit(vector, len(vector) // 4):
            raise EmbedderDown("the embedding endpoint answers what is no vector", model)
        self.width = len(vector) // 4
        self.identity = f"openai/{model}/{self.width}"

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """Vectors of texts, in one call.

        Raises:
            EmbedderDown: it cannot be reached, or refuses whatever it is sent.
            FoldlineError: EMBEDDING_MISMATCH where the vectors have another width than before.
            ValueError: it refuses these texts.
        """
        return self._vectors(texts, SECONDS)

    def query(self, text: str) -> bytes:
        """The vector of a question, or EMBEDDER_UNAVAILABLE, within ``QUERY_SECONDS``."""
        if time.monotonic() < self._rests_until:
            raise self._last
        found: list[bytes] = []
        failed: list[Exception] = []

        def work() -> None:
            try:
                found.extend(self._vectors([text], QUERY_SECONDS))
            except Exception as error:
                failed.append(error)

        # Timeouts of the client are of each read; this one is of all of them together.
        asking = threading.Thread(target=work, name="embed-query", daemon=True)
        asking.start()
        asking.join(QUERY_SECONDS)
        if found:
            return found[0]
        error = failed[0] if failed else EmbedderDown("the embedding endpoint is too slow for a search", self._model)
        if isinstance(error, EmbedderDown):
            self._rests_until, self._last = time.monotonic() + REST_SECONDS, error
        raise error

    def _vectors(self, texts: Sequence[str], seconds: float) -> list[bytes]:
        try:
            items = msgspec.json.decode(self._call(texts, seconds), type=_Body).data
        except (msgspec.DecodeError, RecursionError):
            items = []
        items.sort(key=lambda item: item.index)
        if [item.index for item in items] != list(range(len(texts))):
            raise EmbedderDown("the embedding endpoint answers something else than a vector a text", self._model)
        return [self._unit(item.embedding) for item in items]

    def _call(self, texts: Sequence[str], seconds: float) -> bytes:
        try:
            client = self._client.with_options(api_key=self._key(), timeout=seconds)
            raw = client.embeddings.with_raw_response.create(
                model=self._model, input=list(texts), encoding_format="float"
            )
            content: bytes = raw.http_response.content
        # What the errors say may hold the texts or the key (W8).
        except self._sdk.APIStatusError as error:
            if error.status_code in _TEXT_AT_FAULT and self.width:
                raise ValueError(f"the embedding endpoint answered {error.status_code}") from None
            raise EmbedderDown(f"the embedding endpoint answered {error.status_code}", self._model) from None
        except (self._sdk.APIConnectionError, TooLong) as error:
            long = next((e for e in (error, error.__cause__) if isinstance(e, TooLong)), "cannot be reached")
            raise EmbedderDown(f"the embedding endpoint {long}", self._model) from None
        return content

    def _unit(self, values: Sequence[float]) -> bytes:
        if self.width not in (0, len(values)):
            raise FoldlineError(
                Reason.EMBEDDING_MISMATCH,
                f"the embedding model answers vectors of width {len(values)}, before it was {self.width}",
                expected=self.width, actual=len(values),
            )  # fmt: skip
        with np.errstate(all="ignore"):
            vector = np.array(values, np.float32)
            unit: bytes = (vector / np.linalg.norm(vector)).astype("<f4").tobytes()
        return unit
