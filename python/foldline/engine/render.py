"""A transcript in sending order, as a function of its list (R5); formats lower what comes out.

Choices where R5 is silent: a summary counts as of the run where it names one and stands directly behind a request,
also once that run has closed, so that closing a run changes nothing that was sent; a transcript that ends on a paused
row is waiting for its continuation and gets no ENDS_ON_ASSISTANT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from foldline.domain.arrangement import (
    Arrangement,
    AssistantItem,
    CallName,
    CallResult,
    Item,
    NativeItem,
    PlaceholderKind,
    ResultsItem,
    SystemItem,
    UserItem,
    UserKind,
)
from foldline.domain.changes import replace
from foldline.domain.checkpoints import usage_text
from foldline.domain.enums import WarningCode
from foldline.domain.folding import facts_of, is_paused
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    ContentBlock,
    ProviderCompactionRow,
    ReasoningBlock,
    Row,
    ServerToolBlock,
    SystemRow,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    calls_of,
    identity_of,
)
from foldline.domain.session import CallState, OpenRun
from foldline.engine.units import continuations

FIRST_MESSAGE = "(The conversation continues below.)"
PLACEHOLDER_TEXTS = {
    PlaceholderKind.PENDING: "no result yet",
    PlaceholderKind.NOT_COMPLETED: "not completed",
}
EARLIER_WORK = "[Summary of earlier work in this conversation. It is a record of what happened, no request.]"
RUN_WORK = "[Summary of the work done so far on the request above. It is a record of what happened, no request.]"
LATE_ARGUMENTS_CHARS = 2_000


def arrange(
    rows: Sequence[Row],
    *,
    open_run: OpenRun | None,
    calls: Sequence[CallState],
    bounded: Mapping[int, str] | None = None,
    archived: Mapping[int, Row] | None = None,
) -> Arrangement:
    """Orders a transcript for sending (R5).

    Args:
        rows: the active rows in list order.
        calls: call states; they hold which placeholder was sent first.
        bounded: text that replaces a result's own for this request, by offset of the result (B2).
        archived: assistant rows that folded, by offset, where late results name their calls; see
            ``archived_calls``.
    """
    return _Arranger(rows, open_run, calls, bounded or {}, archived or {}).arrange()


def archived_calls(rows: Sequence[Row]) -> tuple[int, ...]:
    """Offsets of assistant rows that are not in the list but whose calls results in it answer."""
    live = {identity_of(r) for r in rows if isinstance(r.body, AssistantRow)}
    wanted = (r.body.call_offset for r in rows if isinstance(r.body, ToolResultRow))
    return tuple(sorted({o for o in wanted if o is not None and o not in live}))


@dataclass(frozen=True, slots=True)
class _Batch:
    """An assistant row, the results that stand directly after it, and the row that continues it."""

    row: Row
    results: Mapping[str, tuple[Row, ...]]
    continued_by: int | None


class _Arranger:
    def __init__(
        self,
        rows: Sequence[Row],
        open_run: OpenRun | None,
        calls: Sequence[CallState],
        bounded: Mapping[int, str],
        archived: Mapping[int, Row],
    ) -> None:
        self.rows = _current(rows)
        self.open_runs = {"", open_run.run_id} if open_run else {""}
        self.states = {(c.offset, c.call_id): c for c in calls}
        self.bounded = bounded
        self.callers = dict(archived) | {identity_of(r): r for r in self.rows if isinstance(r.body, AssistantRow)}
        self.items: list[Item] = []
        self.used: set[str] = set()

    def arrange(self) -> Arrangement:
        batches, attached = self._batches()
        continued = {b.continued_by for b in batches.values() if b.continued_by is not None}
        for position, row in enumerate(self.rows):
            if position in attached or position in continued:
                continue
            if position in batches:
                self._chain(batches, position)
            else:
                self._single(row)
        self._drop_open_server_calls()
        return Arrangement(tuple(self._with_first_user()), self._warnings())

    def _batches(self) -> tuple[dict[int, _Batch], set[int]]:
        """Batches by position of their assistant row, and positions of the results that stand in one."""
        live = {identity_of(r): p for p, r in enumerate(self.rows) if isinstance(r.body, AssistantRow)}
        answers: dict[int, dict[str, list[tuple[int, Row]]]] = {}
        for position, row in enumerate(self.rows):
            body = row.body
            if isinstance(body, ToolResultRow) and not body.late and body.call_offset in live:
                made = {c.call_id for c in calls_of(self.rows[live[body.call_offset]].body)}
                if body.call_id in made:
                    by_call = answers.setdefault(live[body.call_offset], {})
                    by_call.setdefault(body.call_id, []).append((position, row))
        attached: set[int] = set()
        followed = self._continued_by()
        batches: dict[int, _Batch] = {}
        for position in live.values():
            standing: dict[str, tuple[Row, ...]] = {}
            for call_id, given in answers.get(position, {}).items():
                inside = _standing(given)
                attached.update(p for p, _ in inside)
                standing[call_id] = tuple(r for _, r in inside)
            batches[position] = _Batch(self.rows[position], standing, followed.get(position))
        return batches, attached

    def _continued_by(self) -> dict[int, int]:
        """Position of a paused row to that of the row which continues it."""
        if not any(_waits(r) for r in self.rows):
            return {}
        return {before: p for p, before in continuations([facts_of(r, 0, 0) for r in self.rows]).items()}

    def _chain(self, batches: Mapping[int, _Batch], position: int) -> None:
        """An assistant row, its results, then what continues it: rows in between come after (R5)."""
        at: int | None = position
        while at is not None:
            batch = batches[at]
            calls = calls_of(batch.row.body)
            names = tuple(CallName(c.call_id, self._unique(c.call_id, batch.row)) for c in calls)
            body = batch.row.body
            assert isinstance(body, AssistantRow)
            offsets = (batch.row.offset,)
            self.items.append(AssistantItem(offsets, batch.row, body.content, names, continues=at != position))
            if calls:
                self._results(batch, calls, names)
            at = batch.continued_by

    def _unique(self, call_id: str, row: Row) -> str:
        """An id that no earlier call has: a repeated one carries its assistant offset (R5)."""
        name, again = call_id, 0
        while name in self.used:
            name = f"{call_id}_{row.offset}" + (f"_{again}" if again else "")
            again += 1
        self.used.add(name)
        return name

    def _results(self, batch: _Batch, calls: Sequence[ToolCallBlock], names: Sequence[CallName]) -> None:
        results: list[CallResult] = []
        offsets: list[int] = []
        for call, name in zip(calls, names, strict=True):
            given = batch.results.get(call.call_id, ())
            offsets += [r.offset for r in given]
            results.append(self._result(batch.row, call, name, given[-1] if given else None))
        self.items.append(ResultsItem(tuple(offsets), batch.row.offset, tuple(results)))

    def _result(self, caller: Row, call: ToolCallBlock, name: CallName, row: Row | None) -> CallResult:
        if row is None:
            kind = self._placeholder(caller, call.call_id)
            return CallResult(name, call.name, (TextBlock(PLACEHOLDER_TEXTS[kind]),), placeholder=kind)
        body = row.body
        assert isinstance(body, ToolResultRow)
        return CallResult(
            name,
            call.name,
            self._result_content(row, body),
            row,
            is_error=body.is_error,
            shortened=row.offset in self.bounded,
        )

    def _result_content(self, row: Row, body: ToolResultRow) -> tuple[ContentBlock, ...]:
        """What is sent of a result, shortened or not, and behind it its usage mark (K4)."""
        text = self.bounded.get(row.offset)
        content: tuple[ContentBlock, ...] = body.content if text is None else (TextBlock(text),)
        return (*content, TextBlock(usage_text(body.usage_mark))) if body.usage_mark else content

    def _placeholder(self, caller: Row, call_id: str) -> PlaceholderKind:
        """The text that was sent first stays; else what the run's state says."""
        state = self.states.get((identity_of(caller), call_id))
        if state is not None and state.placeholder:
            return PlaceholderKind(state.placeholder)
        closed = state.closed if state is not None else caller.run_id not in self.open_runs
        return PlaceholderKind.NOT_COMPLETED if closed else PlaceholderKind.PENDING

    def _single(self, row: Row) -> None:
        body, offsets = row.body, (row.offset,)
        if isinstance(body, SystemRow):
            self.items.append(SystemItem(offsets, row, body.content))
        elif isinstance(body, CompactionSummaryRow):
            self.items.append(UserItem(offsets, UserKind.SUMMARY, (TextBlock(self._summary(body)),), row))
        elif isinstance(body, ProviderCompactionRow):
            self.items.append(NativeItem(offsets, row))
        elif isinstance(body, ToolResultRow):
            lead = TextBlock(self._late(body))
            content = (lead, *self._result_content(row, body))
            self.items.append(UserItem(offsets, UserKind.LATE_RESULT, content, row))
        elif not isinstance(body, AssistantRow):
            self.items.append(UserItem(offsets, UserKind.ROW, body.content, row))

    def _summary(self, body: CompactionSummaryRow) -> str:
        asked = next((i for i in reversed(self.items) if not isinstance(i, SystemItem)), None)
        of_run = bool(body.of_run) and isinstance(asked, UserItem) and asked.kind is not UserKind.SUMMARY
        parts = (RUN_WORK if of_run else EARLIER_WORK, body.text, body.ledger)
        return "\n\n".join(p for p in parts if p)

    def _late(self, body: ToolResultRow) -> str:
        caller = self.callers.get(body.call_offset) if body.call_offset is not None else None
        call = next((c for c in calls_of(caller.body) if c.call_id == body.call_id), None) if caller else None
        what = "error" if body.is_error else "interim result" if body.interim else "result"
        if call is None:
            return f"[Late {what} of the call {body.call_id}:]"
        arguments = call.arguments_json
        if len(arguments) > LATE_ARGUMENTS_CHARS:
            arguments = f"{arguments[:LATE_ARGUMENTS_CHARS]}… ({len(call.arguments_json)} characters)"
        return f"[Late {what} of the call {call.name} ({body.call_id}) with the arguments {arguments}:]"

    def _drop_open_server_calls(self) -> None:
        """A server call that no row of its message answers is left out once anything follows the message (R5)."""
        last = max((i for i, item in enumerate(self.items) if not isinstance(item, SystemItem)), default=0)
        kept: list[Item] = []
        for start, end in self._messages():
            message = self.items[start:end]
            said = [i for i in message if isinstance(i, AssistantItem)]
            if any(_waits(i.row) for i in said) and end <= last:
                done = {b.call_id for i in said for b in i.content if isinstance(b, ServerToolBlock) and b.result}
                message = _without_open_server_calls(message, done)
            kept += message
        self.items = kept

    def _messages(self) -> Iterator[tuple[int, int]]:
        """Items as ranges: an assistant row with what continues it and the results in between is one."""
        start = 0
        for index, item in enumerate(self.items):
            goes_on = isinstance(item, AssistantItem) and item.continues
            if index > start and not goes_on and not (isinstance(item, ResultsItem) and self._continued_after(index)):
                yield start, index
                start = index
        if self.items:
            yield start, len(self.items)

    def _continued_after(self, index: int) -> bool:
        following = self.items[index + 1] if index + 1 < len(self.items) else None
        return isinstance(following, AssistantItem) and following.continues

    def _with_first_user(self) -> list[Item]:
        first = next((i for i, item in enumerate(self.items) if not isinstance(item, SystemItem)), None)
        if first is None or isinstance(self.items[first], UserItem | NativeItem):
            return self.items
        placeholder = UserItem((), UserKind.PLACEHOLDER, (TextBlock(FIRST_MESSAGE),))
        return [*self.items[:first], placeholder, *self.items[first:]]

    def _warnings(self) -> tuple[WarningCode, ...]:
        last = next((i for i in reversed(self.items) if not isinstance(i, SystemItem)), None)
        if isinstance(last, AssistantItem) and not _waits(last.row):
            return (WarningCode.ENDS_ON_ASSISTANT,)
        return ()


def _waits(row: Row) -> bool:
    return isinstance(row.body, AssistantRow) and is_paused(row.body)


def _current(rows: Sequence[Row]) -> list[Row]:
    """The rows less superseded system rows, which count nothing and are not sent (§2, 4.1)."""
    newest: dict[str, int] = {}
    for row in rows:
        if isinstance(row.body, SystemRow) and row.body.key:
            newest[row.body.key] = max(newest.get(row.body.key, row.body.version), row.body.version)
    return [
        r for r in rows if not (isinstance(r.body, SystemRow) and r.body.key and r.body.version < newest[r.body.key])
    ]


def _standing(given: Sequence[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """The results of one call that stand in its batch, the one that is sent last.

    A first final result stands alone; else the interim ones, of which the newest is sent. What comes after is late
    (R3), whatever its row says.
    """
    inside: list[tuple[int, Row]] = []
    for position, row in given:
        body = row.body
        assert isinstance(body, ToolResultRow)
        if not body.interim:
            return inside or [(position, row)]
        inside.append((position, row))
    return inside


def _without_open_server_calls(message: Sequence[Item], done: AbstractSet[str]) -> list[Item]:
    """A message less its server calls that are not ``done``; an item that held nothing else goes whole."""
    kept: list[Item] = []
    begun = False
    for item in message:
        if isinstance(item, AssistantItem):
            content = _without_calls(item.content, done)
            if not content:
                continue
            item = replace(item, content=content, continues=item.continues and begun)
            begun = True
        kept.append(item)
    return kept


def _without_calls(content: Sequence[ContentBlock], done: AbstractSet[str]) -> tuple[ContentBlock, ...]:
    """Blocks less open server calls; reasoning that would then end the row led to them and goes too."""
    left = [b for b in content if not (isinstance(b, ServerToolBlock) and not b.result and b.call_id not in done)]
    if len(left) == len(content):
        return tuple(content)
    while left and isinstance(left[-1], ReasoningBlock):
        left.pop()
    return tuple(left)
