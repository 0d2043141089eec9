"""The calls of one summary: retries within the time there is, what they used, and what their answers are worth (S5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import structlog

from foldline.domain.enums import FailureKind, ModelType, RefusalKind, SummarySource
from foldline.domain.folding import SummaryFailed
from foldline.domain.models import Usage
from foldline.domain.rows import ModelRef
from foldline.summarize.prompt import Ask
from foldline.summarize.providers.endpoint import Answer, Call, CallFailed, Ending
from foldline.summarize.written import Sections, bare, sections_of

log = structlog.get_logger(__name__)

_TOO_LARGE = (RefusalKind.CONTEXT_EXCEEDED, RefusalKind.BODY_TOO_LARGE)
_TOKEN_CHARS = 64
"""No text has so many characters a token."""
_READ_BYTES, _LOGGED_CHARS = 16_384, 400
_PAGE = 256
"""llama.cpp rounds its windows up to a multiple of it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal as classified (4.4): its kind, when to come back in seconds, and the tokens and the limit it names."""

    kind: RefusalKind = RefusalKind.OTHER
    retry_after: float | None = None
    tokens: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Judges:
    """What other layers know and a summary by a provider needs.

    Attributes:
        count: tokens of a text for a model (4.5); ``exact`` where its own vocabulary counts them.
        window: tokens that a model takes (4.2).
        refusal: of a request, from status, body and the provider's name (4.4).
        usage: the usage in a provider's whole response body, as one shape (4.3); None where it carries none.
        faults: what is wrong with a text as a summary of a source (V6).
    """

    count: Callable[[str, ModelRef], int]
    exact: Callable[[ModelRef], bool]
    window: Callable[[ModelRef], int]
    refusal: Callable[[int, bytes, str], Refused]
    usage: Callable[[ModelType, Mapping[str, Any]], Usage | None]
    faults: Callable[[str, SummarySource], Iterable[str]]


class Counted(Protocol):
    """What answers: ``kind`` says how its usage is read (4.3)."""

    kind: ModelType


class Conversation:
    """Calls to one model for one summary. May be used by several tasks of one event loop.

    Attributes:
        call: the client, once it is open.
        called: whether any call was made, answered or not.
        usage: of all answered calls that named any.
    """

    def __init__(
        self, name: str, endpoint: Counted, model: ModelRef, judges: Judges, *, retries: int, deadline: float,
        backoff: float, mask: Callable[[str], str], heard: Callable[[Ask, Usage | Refused], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        """Prepares the calls.

        Args:
            deadline: by ``time.monotonic()``.
            backoff: seconds before the first retry of a call whose refusal names none; each further one doubles them.
            mask: hides secrets in what is logged of a provider's words.
            heard: is told what an answer used, and each refusal for size.
        """
        self._name, self._endpoint, self._model, self._judges = name, endpoint, model, judges
        self._retries, self._deadline, self._backoff, self._mask = retries, deadline, backoff, mask
        self._heard = heard
        self.call: Call = _unopened
        self.called = False
        self.usage: Usage | None = None

    async def sections(self, ask: Ask, most: int) -> Sections:
        """The six sections that the model wrote.

        Raises:
            SummaryFailed: SUMMARIZER_FAILED where no answer came, SUMMARY_REJECTED where it is no summary.
        """
        answer = await self.answered(ask, most)
        if answer.ending is Ending.UNFINISHED:
            self.fail(FailureKind.SUMMARIZER_FAILED, f"{self._name} {answer.ending}")
        ending = self._ending(ask, answer, most)
        if ending is not Ending.COMPLETE:
            full = ending is Ending.WINDOW
            self.fail(FailureKind.SUMMARY_REJECTED, f"{self._name} {ending}", context_exceeded=full)
        if len(answer.text) > _TOKEN_CHARS * most:
            what = f"{len(answer.text)} characters where it was asked for {most} tokens at most"
            self.fail(FailureKind.SUMMARY_REJECTED, f"{self._name} gave {what}")
        text = bare(answer.text)
        if not text:
            why = "reasoning and no summary" if answer.reasoned or answer.text.strip() else "a blank summary"
            self.fail(FailureKind.SUMMARY_REJECTED, f"{self._name} gave {why}")
        faults = "; ".join(self._judges.faults(text, SummarySource.PROVIDER))
        sections = sections_of(text)
        if faults or sections is None:
            self.fail(FailureKind.SUMMARY_REJECTED, faults or "the headings stand in no order")
        return sections

    async def answered(self, ask: Ask, most: int) -> Answer:
        """The answer to one call, made again where it may succeed later.

        Raises:
            SummaryFailed: SUMMARIZER_FAILED where none came.
        """
        attempt = 0
        while True:
            try:
                self.called = True
                answer = await self.call(self._model.model, ask, most)
                break
            except CallFailed as failure:
                wait = self._wait(ask, failure, attempt)
            await asyncio.sleep(wait)
            attempt += 1
        used = self._judges.usage(self._endpoint.kind, answer.body)
        if used is not None:
            self._heard(ask, used)
            self.usage = used if self.usage is None else self.usage.plus(used)
        return answer

    def _ending(self, ask: Ask, answer: Answer, most: int) -> Ending:
        """How an answer ended, also where the server says less than that.

        llama.cpp says of an answer that filled its window what it says of one that took every token it was given, and
        its Responses call both complete. Windows are round there, so that the tokens tell (S7).
        """
        used = self._judges.usage(self._endpoint.kind, answer.body)
        given, wrote = (used.input_tokens or 0, used.output_tokens or 0) if used is not None else (0, 0)
        ending = answer.ending
        if ending is Ending.COMPLETE and wrote == most:
            return Ending.LENGTH
        cut = ending is Ending.LENGTH or (ending is Ending.COMPLETE and answer.unsaid)
        if cut and given and 0 < wrote < most and (given + wrote) % _PAGE == 0:
            ending = Ending.WINDOW
        if ending is Ending.WINDOW and given and wrote:
            self._heard(ask, Refused(RefusalKind.CONTEXT_EXCEEDED, tokens=given, limit=given + wrote))
        return ending

    def _wait(self, ask: Ask, failure: CallFailed, attempt: int) -> float:
        """Seconds until the call is made again.

        Raises:
            SummaryFailed: it is not: because of its kind, because it was tried enough, or for want of time.
        """
        refused = self._judges.refusal(failure.status, failure.body, self._name) if failure.status else Refused()
        kind, later = refused.kind, failure.retry_after
        later = refused.retry_after if later is None else later
        said = failure.body[:_READ_BYTES].decode("utf-8", "replace")
        log.warning(
            "a summary's call failed", provider=self._name, model=self._model.model, what=failure.what,
            kind=kind, attempt=attempt + 1, said=self._mask(said)[:_LOGGED_CHARS],
        )  # fmt: skip
        too_large = failure.status == 413 and kind is not RefusalKind.RATE_LIMITED
        if kind in _TOO_LARGE or too_large:
            self._heard(ask, refused)
            self.fail(
                FailureKind.SUMMARIZER_FAILED,
                f"{self._name} refused the summary's input for its size{_numbers(refused)}", context_exceeded=True,
            )  # fmt: skip
        again = failure.again or kind in (RefusalKind.RATE_LIMITED, RefusalKind.OVERLOADED)
        wait = self._backoff * 2**attempt if later is None else later
        if not again or attempt >= self._retries or wait >= self._deadline - time.monotonic():
            tries = "" if attempt == 0 else f", {attempt + 1} times"
            mend = self._mend(failure.status, kind, later)
            self.fail(FailureKind.SUMMARIZER_FAILED, f"{self._name} {failure.what}{tries}{mend}", retry_after=later)
        return wait

    def _mend(self, status: int, kind: RefusalKind, later: float | None) -> str:
        """What to look at where a call was refused, or when to come back."""
        settings = f"providers.{self._name}"
        if later:
            return f", and asks to wait {later:g} s"
        if status in (401, 403) or kind is RefusalKind.AUTHENTICATION:
            return f" for {self._model.model}: check the key that {settings}.api_key_env or api_key_file names"
        if status == 404:
            return f" for {self._model.model}: check the name of the model, and {settings}.base_url"
        return "" if status else f": check {settings}.base_url, and whether it serves"

    def fail(
        self, kind: FailureKind, detail: str, *, retry_after: float | None = None, context_exceeded: bool = False
    ) -> NoReturn:
        """Raises the failure with what was used up to it."""
        raise SummaryFailed(
            kind, detail, retry_after, model=self._model if self.called else ModelRef(), usage=self.usage,
            context_exceeded=context_exceeded,
        ) from None  # fmt: skip


def _numbers(refused: Refused) -> str:
    """The numbers that a refusal named, which say whether the window or the input is not what it was taken for."""
    named = [
        f"{name} {number} tokens" for name, number in (("it has", refused.tokens), ("there is room for", refused.limit))
        if number is not None
    ]  # fmt: skip
    return f": {', '.join(named)}" if named else ""


async def _unopened(model: str, ask: Ask, most: int) -> Answer:
    raise AssertionError("the endpoint is not open")
