"""Summaries by a fake provider, for the tests of summaries by providers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from foldline import _core
from foldline.config import Config
from foldline.domain.folding import SummaryFailed, SummaryRequest, SummaryResult
from foldline.domain.ports import Summarizer
from foldline.domain.rows import CompactionSummaryRow, ModelRef, Row
from foldline.engine.catalog import DEFAULT_CATALOG
from foldline.engine.refusals import classify
from foldline.engine.summary_text import text_faults
from foldline.engine.usage import from_response
from foldline.summarize.providers import Judges, Refused, provider_from

from tests.support.providers import FakeProvider

KINDS = ("openai", "openai_responses", "anthropic", "google")
WINDOW = 64_000
BACKOFF = 0.002


def count(text: str, model: ModelRef = ModelRef()) -> int:
    encoding = DEFAULT_CATALOG.lookup(model).encoding
    return _core.count_tokens(text, encoding) if encoding else _core.weighted_tokens(text)


def refusal(status: int, body: bytes, provider: str) -> Refused:
    found = classify(status, body, provider)
    return Refused(found.kind, found.retry_after, found.named_tokens, found.named_limit)


JUDGES = Judges(
    count=count,
    exact=lambda model: bool(DEFAULT_CATALOG.lookup(model).encoding),
    window=lambda model: DEFAULT_CATALOG.lookup(model).ceiling,
    refusal=refusal,
    usage=from_response,
    faults=text_faults,
)


def summarizer(fake: FakeProvider, kind: str = "openai", name: str = "p", **settings: Any) -> Summarizer:
    """The source PROVIDER with one provider of that type behind it."""
    table = {"type": kind, "base_url": fake.base_url(kind), **settings}
    config = Config.load(env={}, flags={f"providers.{name}.{key}": value for key, value in table.items()})
    made = provider_from(config, JUDGES, BACKOFF)
    assert made is not None
    return made


def asking(source: Sequence[Row], *, earlier: Sequence[CompactionSummaryRow] = (), **fields: Any) -> SummaryRequest:
    given = {
        "budget": 1024, "appendix": 0, "coverage_floor": 0.0, "model": ModelRef("p", "m"), "window": WINDOW,
        "timeout": 20.0, **fields,
    }  # fmt: skip
    return SummaryRequest(rows=tuple(source), earlier=tuple(earlier), **given)


def failure(source: Summarizer, request: SummaryRequest) -> SummaryFailed:
    try:
        source.summarize(request)
    except SummaryFailed as failed:
        return failed
    raise AssertionError("the summary did not fail")


def written(fake: FakeProvider, rows: Sequence[Row], **fields: Any) -> SummaryResult:
    return summarizer(fake).summarize(asking(rows, **fields))


def taken(fake: FakeProvider, model: ModelRef = ModelRef("p", "m")) -> list[int]:
    """Tokens of each request that came, with the answer it asked for."""
    size = partial(count, model=model)
    return [size(r.system) + size(r.user) + r.most for r in fake.received]
