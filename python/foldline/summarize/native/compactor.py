"""Compaction by the configured providers: the source ``NATIVE`` (§12)."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import structlog

from foldline.access import Key, hidden
from foldline.config import ConfigError
from foldline.domain.enums import FailureKind, SummarySource
from foldline.domain.folding import SourceBound, SummaryFailed, SummaryResult
from foldline.domain.native import NativeRoute, NativeTask, placeholder
from foldline.domain.rows import ModelRef, ProviderCompactionRow
from foldline.summarize.native.api import Incapable, NativeApi, NotCompacted
from foldline.summarize.prompt import Ask
from foldline.summarize.providers.conversation import Conversation, Judges
from foldline.summarize.providers.endpoint import Answer, CallFailed
from foldline.summarize.providers.running import Cancelled, run

log = structlog.get_logger(__name__)

_MOST_BYTES = 16_777_216
"""Of an item, as the contract has it."""


@dataclass(frozen=True, slots=True)
class Native:
    """A provider as configured: its API and key."""

    name: str
    api: NativeApi
    key: Key


class NativeCompactor:
    """Has rows compacted through providers' SDKs. Several may be compacted at once.

    Args:
        providers: by name, which is what ``ModelRef.provider`` says.
        backoff: seconds before the first retry of a call whose refusal names none; each further one doubles them.
    """

    def __init__(self, providers: Mapping[str, Native], judges: Judges, backoff: float = 0.5) -> None:
        self._providers, self._judges, self._backoff = dict(providers), judges, backoff

    def load(self) -> None:
        """Imports the SDKs ahead of the first call, which would wait seconds for them."""
        for provider in self._providers.values():
            try:
                provider.api.load()
            except ImportError as error:
                log.error("an SDK cannot be imported", provider=provider.name, what=str(error))

    def route(self, model: ModelRef) -> NativeRoute | None:
        """The way to a model's own compaction: an item is of no use to another, so that no other provider steps in."""
        provider = self._providers.get(model.provider)
        return provider.api.route(model) if provider is not None and model.model else None

    def compact(self, task: NativeTask) -> SummaryResult:
        """Probes where that costs nothing and was not done, then has the rows compacted (N1, N3).

        Raises:
            SummaryFailed: NATIVE_UNAVAILABLE, SUMMARIZER_TIMEOUT, SUMMARIZER_FAILED, SUMMARY_REJECTED, CANCELLED; with
                the model and the usage where calls were made.
        """
        by, model = self._providers[task.route.model.provider], task.route.model
        try:
            key = by.key.read()
            by.api.load()
        except (ConfigError, ImportError) as error:
            log.error("a provider cannot be used", provider=by.name, what=str(error))
            what = "key cannot be read" if isinstance(error, ConfigError) else "SDK cannot be imported"
            raise SummaryFailed(FailureKind.SUMMARIZER_FAILED, f"{by.name}: its {what}") from None
        talk = Conversation(
            by.name, by.api, model, self._judges, retries=task.retries, deadline=time.monotonic() + task.timeout,
            backoff=self._backoff, mask=lambda text: hidden(text, key),
        )  # fmt: skip
        try:
            answer = run(lambda: self._calls(by, key, talk, task), seconds=task.timeout, cancelled=task.cancelled)
            item = by.api.item(answer)
        except Incapable as reason:
            if reason.body is not None and talk.usage is None:
                talk.usage = self._judges.usage(by.api.kind, reason.body)
            self._unavailable(talk, f"{by.name} {hidden(str(reason), key)}", remember=True)
        except NotCompacted as reason:
            if reason.unfit:
                self._unavailable(talk, f"{by.name} compacted nothing: {reason}")
            talk.fail(FailureKind.SUMMARY_REJECTED, f"{by.name} compacted nothing: {reason}")
        except SummaryFailed as failure:
            if failure.context_exceeded:
                self._unavailable(talk, failure.detail)
            raise
        except Cancelled:
            talk.fail(FailureKind.CANCELLED, "nobody waits for the summary any more")
        except TimeoutError:
            talk.fail(FailureKind.SUMMARIZER_TIMEOUT, f"{by.name} did not answer within {task.timeout:g} s")
        except Exception as error:
            # Its text and its chain may hold what was sent, the key too.
            where = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-3:]]
            log.error("a provider's SDK failed", provider=by.name, error=type(error).__name__, where=where)
            talk.fail(FailureKind.SUMMARIZER_FAILED, f"the SDK of {by.name} failed: {type(error).__name__}")
        if len(item.encode()) > _MOST_BYTES:
            talk.fail(FailureKind.SUMMARY_REJECTED, f"{by.name} gave an item of {len(item.encode())} bytes")
        row = ProviderCompactionRow(item, model, beta=by.api.beta)
        return SummaryResult(
            placeholder(row), (), SummarySource.NATIVE, SourceBound(), model=model, usage=talk.usage, item=row
        )

    async def _calls(self, by: Native, key: str, talk: Conversation, task: NativeTask) -> Answer:
        async with by.api.open(key) as opened:
            if not task.known:
                # What fails on the way there says nothing of the capability, and costs nothing.
                try:
                    await opened.probe(task.route.model.model)
                except CallFailed as failure:
                    talk.fail(
                        FailureKind.SUMMARIZER_FAILED, f"{by.name} {failure.what} when it was asked what the model can",
                        retry_after=failure.retry_after,
                    )  # fmt: skip
            talk.call = opened.call
            return await talk.answered(Ask("", 0, fields=by.api.fields(task)), by.api.most(task))

    @staticmethod
    def _unavailable(talk: Conversation, detail: str, *, remember: bool = False) -> NoReturn:
        """The successor writes (N3)."""
        try:
            talk.fail(FailureKind.NATIVE_UNAVAILABLE, detail)
        except SummaryFailed as failure:
            failure.remember = remember
            raise
