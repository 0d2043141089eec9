"""Summaries by a configured provider's model (S2-S5): the source ``PROVIDER``."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from foldline.access import NO_KEY, Key, hidden
from foldline.config import ConfigError, Provider
from foldline.domain.changes import replace
from foldline.domain.enums import FailureKind, Oversize, PromptCache, SourceBoundKind, SummarySource
from foldline.domain.folding import LiveRequest, SourceBound, SummaryFailed, SummaryRequest, SummaryResult
from foldline.domain.models import DEFAULT_WINDOW, Usage
from foldline.domain.rows import ModelRef
from foldline.summarize.coverage import cover
from foldline.summarize.prompt import Ask
from foldline.summarize.providers.appended import NotAppendable
from foldline.summarize.providers.conversation import Conversation, Judges, Refused
from foldline.summarize.providers.endpoint import Endpoint
from foldline.summarize.providers.running import Cancelled, run
from foldline.summarize.providers.sizes import UNKNOWN, Sizes
from foldline.summarize.providers.task import Task
from foldline.summarize.sizing import Sized, chunks, trim
from foldline.summarize.source import read_source
from foldline.summarize.transcript import parts_of
from foldline.summarize.written import Sections, composed, masked

_BECAUSE_BYTES = 256
_AT_ONCE = 4
"""Calls of one summary that are made side by side."""
_KEY_LENGTH = 16
"""Keys that are shorter are what servers take that want none, and ordinary words: a summary may hold them."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Configured:
    """A provider as configured: its settings, API and key."""

    name: str
    settings: Provider
    endpoint: Endpoint
    key: Key


class ProviderSummarizer:
    """Writes summaries through providers' SDKs. Several may be written at once.

    Args:
        providers: by name, which is what a request's ``model.provider`` says.
        backoff: seconds before the first retry of a call whose refusal names none; each further one doubles them.
    """

    def __init__(self, providers: Mapping[str, Configured], judges: Judges, backoff: float = 0.5) -> None:
        self._providers, self._judges, self._backoff = dict(providers), judges, backoff
        self._sizes = Sizes()

    def load(self) -> None:
        """Imports the SDKs ahead of the first summary, which would wait seconds for them."""
        for provider in self._providers.values():
            try:
                provider.endpoint.load()
            except ImportError as error:
                log.error("an SDK cannot be imported", provider=provider.name, what=str(error))

    def summarize(self, request: SummaryRequest) -> SummaryResult:
        """Writes a summary of at most ``request.budget`` tokens, plus an appendix of at most ``request.appendix``.

        Raises:
            SummaryFailed: SUMMARIZER_TIMEOUT, SUMMARIZER_FAILED, SUMMARY_REJECTED, UNMEASURED_TRANSCRIPT, CANCELLED;
                with the model and the usage where calls were made.
        """
        by, model = self._chosen(request.model)
        asked = by.name == request.model.provider
        factor = request.factor if asked else None
        known = self._sizes.of(model, factor or (1.0 if self._judges.exact(model) else UNKNOWN))
        windows = (request.window if asked else self._judges.window(model), by.settings.window or 0, known.limit or 0)
        window = min((w for w in windows if w > 0), default=DEFAULT_WINDOW)
        most = by.settings.max_output or 2 * request.budget + by.endpoint.reasoning
        prose = request.count or partial(self._prose_tokens, model)
        count = partial(self._count, model)
        task = Task(request, read_source(request, prose), window, most, count, known.scale, prose)

        def heard(ask: Ask, what: Usage | Refused) -> None:
            counted = task.counted(ask)
            if isinstance(what, Refused):
                self._sizes.refused(model, known, counted, window, what.tokens, what.limit)
            elif not what.aggregated:
                self._sizes.answered(model, known, counted, what.input_tokens or 0)

        sections, bound, usage = self._converse(task, by, model, heard)
        return _result(task, sections, bound, model, usage)

    def _count(self, model: ModelRef, text: str) -> int:
        return self._judges.count(text, model)

    def _prose_tokens(self, model: ModelRef, text: str) -> int:
        """By the writer's vocabulary or weighted bytes, whichever is more: the session's own may be either (V6)."""
        return max(self._judges.count(text, model), self._judges.count(text, ModelRef()))

    def model_for(self, model: ModelRef) -> ModelRef:
        """Who writes where this model is asked for: another provider's, where its own is not configured (S2)."""
        try:
            return self._chosen(model)[1]
        except SummaryFailed:
            return model

    def _chosen(self, model: ModelRef) -> tuple[Configured, ModelRef]:
        """S2: the provider that the model names; one that has a model of its own writes for all others."""
        named = self._providers.get(model.provider)
        if named is not None and (model.model or named.settings.model):
            return named, ModelRef(named.name, model.model or named.settings.model)
        for other in self._providers.values():
            if other.settings.model:
                return other, ModelRef(other.name, other.settings.model)
        known = ", ".join(sorted(self._providers))
        raise SummaryFailed(
            FailureKind.SUMMARIZER_FAILED,
            f"no provider writes summaries for {model.provider or '(no provider)'}; configured are {known}: name "
            "one of them in summary.fast_model, or give one a model of its own",
        )

    def _converse(
        self, task: Task, by: Configured, model: ModelRef, heard: Callable[[Ask, Usage | Refused], None]
    ) -> tuple[Sections, SourceBound, Usage | None]:
        """Makes the calls; whatever becomes of them, the failure says what they used."""
        request = task.request
        try:
            key = by.key.read()
            by.endpoint.load()
        except (ConfigError, ImportError) as error:
            log.error("a provider cannot be used", provider=by.name, what=str(error))
            what = "key cannot be read" if isinstance(error, ConfigError) else "SDK cannot be imported"
            raise SummaryFailed(FailureKind.SUMMARIZER_FAILED, f"{by.name}: its {what}; the log says why") from None
        talk = Conversation(
            by.name, by.endpoint, model, self._judges, retries=request.retries, backoff=self._backoff,
            deadline=time.monotonic() + request.timeout,
            mask=lambda text: task.source.mask(hidden(text, key)), heard=heard,
        )  # fmt: skip

        async def calls() -> tuple[Sections, SourceBound]:
            async with by.endpoint.open(key) as talk.call:
                return await _written(task, talk, by, model)

        try:
            sections, bound = run(calls, seconds=request.timeout, cancelled=request.cancelled)
        except SummaryFailed as failure:
            # Calls that went on beside the one that failed, or before what failed without one, are paid for too.
            failure.usage, failure.model = talk.usage, model if talk.called else ModelRef()
            raise
        except Cancelled:
            talk.fail(FailureKind.CANCELLED, "nobody waits for the summary any more")
        except TimeoutError:
            talk.fail(FailureKind.SUMMARIZER_TIMEOUT, f"{by.name} did not answer within {request.timeout:g} s")
        except Exception as error:
            # Its text and its chain may hold what was sent, the key too.
            where = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-3:]]
            log.error("a provider's SDK failed", provider=by.name, error=type(error).__name__, where=where)
            talk.fail(FailureKind.SUMMARIZER_FAILED, f"the SDK of {by.name} failed: {type(error).__name__}")
        # A provider may repeat what it was sent, the live request as it is (S4) and the key in its header (W8).
        named = key if len(key) >= _KEY_LENGTH else NO_KEY
        return masked(sections, lambda text: task.source.mask(hidden(text, named))), bound, talk.usage


async def _written(task: Task, talk: Conversation, by: Configured, model: ModelRef) -> tuple[Sections, SourceBound]:
    """The sections of the summary: appended to the live request where that is wanted and holds, else apart (S3)."""
    live = task.request.live
    if live is None:
        return await _apart(task, talk)
    try:
        sections = await talk.sections(*task.ask_live(_appendable(live, by, model)))
        # The live request is not defused: what it is answered with must be (V6).
        clean = [[task.source.clean(line) for line in section] for section in sections]
        return clean, SourceBound(prompt_cache=PromptCache.APPEND)
    except NotAppendable as reason:
        because = str(reason)
    except SummaryFailed as failure:
        if not failure.context_exceeded:
            raise
        because = "the provider refused the live request with the instruction for its size"
    sections, bound = await _apart(task, talk)
    because = because.encode()[:_BECAUSE_BYTES].decode(errors="ignore")
    return sections, replace(bound, prompt_cache=PromptCache.SEPARATE, separate_because=because)


def _appendable(live: LiveRequest, by: Configured, model: ModelRef) -> LiveRequest:
    """The live request, where a call to this endpoint and model shares a cache with it.

    Raises:
        NotAppendable: it is another's, of another format, or not known.
    """
    if live.separate_because:
        raise NotAppendable(live.separate_because)
    if live.model != model:
        raise NotAppendable(f"the live request goes to {live.model.provider}/{live.model.model}")
    if live.format is not by.endpoint.format:
        raise NotAppendable(f"the live request is in the format {live.format}, the endpoint takes {by.endpoint.format}")
    return live


async def _apart(task: Task, talk: Conversation) -> tuple[Sections, SourceBound]:
    """The sections from a request of its own or, where the rows do not fit it, by what the policy says (S4)."""
    parts = parts_of(task.request.rows, task.source.clean)
    if task.request.oversize is Oversize.TRIM or task.fits(parts):
        sized = trim(parts, task.room, task.size)
        return await talk.sections(task.ask(sized), task.most), sized.bound
    pieces = chunks(parts, task.room, task.size)
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def one(index: int, piece: Sized) -> str:
        async with at_once:
            ask = task.ask(piece, part=(index + 1, len(pieces)))
            return task.partial(await talk.sections(ask, task.most))

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(i, piece)) for i, piece in enumerate(pieces)]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    summaries = [made.result() for made in tasks]
    bound = SourceBound(SourceBoundKind.MAPPED, chunks=len(pieces))
    while True:
        groups = task.grouped(summaries)
        if len(groups) == 1:
            return await talk.sections(task.merge(groups[0]), task.most), bound
        # What stands alone in its group waits for the next round.
        summaries = [
            task.partial(await talk.sections(task.merge(own), task.most)) if len(own) > 1 else own[0] for own in groups
        ]


def _result(task: Task, sections: Sections, bound: SourceBound, model: ModelRef, usage: Usage | None) -> SummaryResult:
    request, source, count = task.request, task.source, task.prose_tokens
    prose = composed(sections, source.durable, source.gave_way, source.room, count)
    if prose is None:
        raise SummaryFailed(
            FailureKind.SUMMARY_REJECTED, f"headings and the user's constraints take more than {source.room} tokens",
            model=model, usage=usage,
        )  # fmt: skip
    spare = min(request.appendix, max(0, source.total - count(prose)))
    text, coverage, added = cover(prose, source.identifiers, request.coverage_floor, spare, count)
    return SummaryResult(
        text, source.kept(prose), SummarySource.PROVIDER, bound, coverage, model, usage, added, source.named
    )
