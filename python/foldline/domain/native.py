"""Compaction by the provider itself (§12): the way to it, what is remembered of it, what its items ask of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from foldline.domain.enums import Format
from foldline.domain.rows import ModelRef, ProviderCompactionRow, RowBody

if TYPE_CHECKING:
    from foldline.domain.folding import SummaryResult

EDIT, PARAMETER = "compact-2026-01-12", "compact-2026-09-04"
"""Anthropic's betas: an edit with a trigger, and a parameter of a request of its own. They are never mixed (N1)."""
NEVER_TRIGGERED = 1_000_000
"""Input tokens at which a request that carries an item of ``EDIT`` would be compacted behind the sidecar's back."""
ASK_AGAIN_SECONDS = 7 * 86_400.0
"""After this long what was learned of a capability is learned anew (N3): a gateway may have been brought up to date."""


@dataclass(frozen=True, slots=True)
class NativeRoute:
    """The way to one model's own compaction (N1), by which its capability is remembered (N3).

    Attributes:
        endpoint: URL of the API.
        protocol: which of the provider's ways it is; for Anthropic the beta.
        format: of the requests that carry its items.
        takes_instructions: whether a host's instructions (S3) can be given.
        takes_tools: whether the tools of the live request are part of the call.
        least_tokens: input under which the provider compacts nothing.
    """

    model: ModelRef
    endpoint: str
    protocol: str
    format: Format
    takes_instructions: bool = False
    takes_tools: bool = False
    least_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Capability:
    """What is known of a route (N3), since ``time``; ``reason`` says why it is not ``there``."""

    there: bool
    reason: str
    time: float


@dataclass(frozen=True, slots=True)
class NativeTask:
    """What is to be compacted.

    Attributes:
        rendered: the rows that fold and every system row, as the live request carries them (XI8); JSON of the route's
            format.
        tools: JSON array of the tools in sight, empty for none.
        known: whether the route is known to be there, so that it need not be probed.
        timeout: seconds for all of it.
    """

    route: NativeRoute
    rendered: bytes
    tools: bytes = b""
    instructions: str = ""
    known: bool = False
    timeout: float = 60.0
    retries: int = 2
    cancelled: Callable[[], bool] = field(default=lambda: False)


class NativeSource(Protocol):
    """The compaction of configured providers."""

    def route(self, model: ModelRef) -> NativeRoute | None:
        """The way to a model's own compaction; None where its provider has none."""

    def compact(self, task: NativeTask) -> SummaryResult:
        """Has the rows compacted; ``item`` of the result is the row to store.

        Raises:
            SummaryFailed: NATIVE_UNAVAILABLE where the provider has no such capability, which is to be remembered if
                ``remember`` says so, or where these rows are too large for it; SUMMARIZER_FAILED, SUMMARIZER_TIMEOUT,
                SUMMARY_REJECTED, CANCELLED.
        """


def format_of(item: ProviderCompactionRow) -> Format:
    """The format of the requests that can carry an item."""
    return Format.ANTHROPIC_MESSAGES if item.beta else Format.OPENAI_RESPONSES


def is_readable(item: ProviderCompactionRow, model: ModelRef, fmt: Format | None) -> bool:
    """N4: whether a request to ``model`` can carry an item; ``fmt`` None or canonical is lowered by the host itself."""
    return item.model == model and fmt in (None, Format.CANONICAL, format_of(item))


def headers_of(bodies: Iterable[RowBody]) -> Mapping[str, str]:
    """HTTP headers that a request with these rows needs beside the host's own."""
    betas = dict.fromkeys(b.beta for b in bodies if isinstance(b, ProviderCompactionRow) and b.beta)
    return {"anthropic-beta": ",".join(betas)} if betas else {}


def placeholder(item: ProviderCompactionRow) -> str:
    """What events and pages show of an item (N2)."""
    return f"[opaque compaction item of {item.model.provider or 'the provider'}]"
