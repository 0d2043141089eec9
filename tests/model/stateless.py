"""Questions of no session: texts bounded, tokens counted, refusals read, usage normalised (B1, B2, B8, 4.3-4.5)."""

from __future__ import annotations

import json

from foldline.v1 import (
    admin_service_pb2,
    compaction_pb2,
    compaction_service_pb2,
    estimate_service_pb2,
    model_pb2,
    row_pb2,
    session_service_pb2,
)

from tests.model import rows as made
from tests.model.recall import Recall
from tests.model.server import CATALOG
from tests.model.state import require

_TOO_LARGE = (compaction_pb2.REFUSAL_KIND_CONTEXT_EXCEEDED, compaction_pb2.REFUSAL_KIND_BODY_TOO_LARGE)
REFUSALS: tuple[tuple[int, bytes, tuple[int, ...]], ...] = (
    (400, b'{"error":{"code":"context_length_exceeded","message":"too long"}}', (1,)),
    (400, b"prompt is too long: 210000 tokens > 200000 maximum", (1,)),
    (413, b"", _TOO_LARGE), (413, b"\xff\x00", _TOO_LARGE), (429, b"too many tokens per minute", (3,)),
    (429, b'{"error":{"code":"rate_limit_exceeded"}}', (3,)), (401, b"{}", (5,)), (529, b"overloaded", (4,)),
)  # fmt: skip
"""Status and body, and what they must be read as."""


class Stateless(Recall):
    """Asked of the sidecar alone; whatever comes has an answer."""

    def stateless(self) -> None:
        for ask in (self.bounded_texts, self.counted, self.classified, self.normalised, self.administered):
            ask()

    def bounded_texts(self) -> None:
        """B1, B2: together within the limit, what is short whole, what is long by its head and the marker."""
        rng = self.rng
        texts = [made.words(rng, rng.choice((0, 3, 60, 400, 3_000))) for _ in range(rng.randrange(1, 5))]
        limit = rng.choice((0, 300, 2_000, 10**6))
        model = self.model(rng.choice(list(CATALOG)))
        asked = compaction_service_pb2.BoundResultsRequest(model=model, limit_bytes=limit)
        for number, text in enumerate(texts):
            asked.results.add(call_id=f"c{number}", text=text)
        if rng.random() < 0.5:
            asked.limit_tokens = limit // 4
        bounded = self.call(None, self.client.compaction.BoundResults, asked)
        kept = {b.offset - 1: b for b in bounded.bounded}
        require(len(kept) == len(bounded.bounded) and set(kept) <= set(range(len(texts))), "B2", bounded)
        for number, one in kept.items():
            whole = texts[number]
            require(one.call_id == f"c{number}" and one.call_id in one.text, "B2", f"the marker of {one}")
            require(one.whole_bytes == len(whole.encode()) > one.kept_bytes, "B2", f"{one} of {len(whole.encode())}")
            head = next((i for i, (a, b) in enumerate(zip(whole, one.text, strict=False)) if a != b), len(whole))
            require(len(whole[:head].encode()) >= min(one.kept_bytes, 1) - 1, "B2", f"{one} begins otherwise")
        sent = sum(len((kept[n].text if n in kept else text).encode()) for n, text in enumerate(texts))
        require(bounded.too_large or sent <= limit, "B1", f"{sent} bytes of {limit}: {bounded}")
        if sum(len(t.encode()) for t in texts) <= limit and not asked.HasField("limit_tokens"):
            require(not kept, "B1", f"shortened, though all fits: {bounded}")

    def counted(self) -> None:
        """4.5: never more tokens than bytes for a text, at least one, and a list is the sum of its rows."""
        rng, stub = self.rng, self.client.estimate.CountTokens
        model = self.model(rng.choice(list(CATALOG)))
        text = made.words(rng, rng.choice((1, 60, 2_000)))
        one = self.call(None, stub, estimate_service_pb2.CountTokensRequest(model=model, text=text))
        require(one.tokens >= 1 and one.bytes == len(text.encode()), "4.5", one)
        rows = [made.user(rng), made.assistant(rng, ["c1"]), made.result(rng, "c1")]
        given = row_pb2.RowInput(rows=row_pb2.RowList(rows=rows))
        many = self.call(None, stub, estimate_service_pb2.CountTokensRequest(model=model, rows=given))
        # The factor is applied to each row and to their sum, which are rounded each.
        beside = abs(sum(many.row_tokens) - many.tokens)
        require(len(many.row_tokens) == len(rows) and beside <= len(rows), "4.5", many)
        require(min(many.row_tokens) >= 1, "4.5", many)

    def classified(self) -> None:
        """4.4: what is too large is known as such, and a rate limit is never taken for it."""
        rng, stub = self.rng, self.client.estimate.ClassifyError
        status, body, kinds = rng.choice(REFUSALS)
        request = estimate_service_pb2.ClassifyErrorRequest(http_status=status, raw_body=body)
        read = self.call(None, stub, request)
        require(read.kind in kinds, "4.4", f"{status} {body!r} is read as {read}")
        noise = rng.choice((b"", b"{", b"\xff", b"[" * 3_000, made.words(rng, 300).encode()))
        request = estimate_service_pb2.ClassifyErrorRequest(http_status=rng.choice((0, 400, 429, 500)), raw_body=noise)
        read = self.call(None, stub, request)
        require(request.http_status != 429 or read.kind not in _TOO_LARGE, "4.4", f"{request} is read as {read}")

    def normalised(self) -> None:
        """4.3: cached tokens occupy the window, whether a provider counts them in or beside."""
        rng, stub = self.rng, self.client.estimate.NormalizeUsage
        fresh, cached, written, out = (rng.randrange(0, 5_000) for _ in range(4))
        fresh += 1
        shapes = {
            "openai": (
                {"prompt_tokens": fresh + cached, "completion_tokens": out,
                 "prompt_tokens_details": {"cached_tokens": cached}}, fresh + cached,
            ),
            "anthropic": (
                {"input_tokens": fresh, "output_tokens": out, "cache_read_input_tokens": cached,
                 "cache_creation_input_tokens": written}, fresh + cached + written,
            ),
            "google": (
                {"promptTokenCount": fresh + cached, "candidatesTokenCount": out, "cachedContentTokenCount": cached},
                fresh + cached,
            ),
        }  # fmt: skip
        provider, (usage, tokens) = rng.choice(list(shapes.items()))
        model = model_pb2.ModelRef(provider=provider, model="any")
        request = estimate_service_pb2.NormalizeUsageRequest(model=model, usage_json=json.dumps(usage).encode())
        got = self.call(None, stub, request).usage
        require((got.input_tokens, got.output_tokens) == (tokens, out), "4.3", f"{usage} is read as {got}")
        odd = rng.choice((b"{}", b'{"input_tokens":-1}', b'{"input_tokens":"7"}', b"[", b"null"))
        request = estimate_service_pb2.NormalizeUsageRequest(model=model, usage_json=odd)
        self.call(None, stub, request, expect=("FORMAT_INVALID", "FIELD_VALIDATION"))

    def administered(self) -> None:
        stubs, rng = self.client, self.rng
        self.call(None, stubs.admin.GetServerInfo, admin_service_pb2.GetServerInfoRequest())
        self.call(None, stubs.admin.GetEffectiveConfig, admin_service_pb2.GetEffectiveConfigRequest())
        self.call(None, stubs.admin.ListModels, admin_service_pb2.ListModelsRequest(page_size=rng.choice((0, 2))))
        listed = self.call(None, stubs.session.ListSessions, session_service_pb2.ListSessionsRequest(page_size=500))
        names = {s.session_id for s in listed.sessions}
        ours = {s.state.id for s in self.scenes} | {kept.log.id for kept in self.lists}
        require(names >= ours, "W6", f"{names} lacks one of {ours}")
