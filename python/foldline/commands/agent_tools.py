"""ListAgentTools and CallAgentTool: the tools by which an agent reaches what was folded or shortened, and by which it
saves checkpoints where its policy has them (K5).

What the model did wrong is an answer that it can read and mend; what is no fault of its own is an error of the RPC.
Answers keep to ``memory.max_answer_tokens``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar, get_args

import msgspec

from foldline.commands import usage_marks
from foldline.commands.checkpoints import SaveCheckpoint, Saved, disabled, save_answering
from foldline.commands.draft import Draft
from foldline.commands.idempotency import answer_of, remember, repeated
from foldline.commands.list_rows import read_row
from foldline.commands.search_memory import HITS, search_memory
from foldline.commands.services import Caller, Services
from foldline.domain.enums import CheckpointKind, EntryRole, Format, Ownership, SkipReason
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.memory import MemoryFilter, MemoryHit, MemoryQuery
from foldline.domain.rows import RowBody, ToolResultRow, kind_of
from foldline.domain.session import Session
from foldline.domain.tools import AgentTool, ToolAnswer

T = TypeVar("T", bound=msgspec.Struct)

HEAD_TOKENS = 64
"""What stands around the text of an answer takes at most this, with the ending; a budget leaves room for it."""
MIN_TEXT_TOKENS = 16
TOKEN_BYTES = 16
"""So much of a text is looked at for each token of a budget; hardly a token stands for more."""
_AGENTS_OWN = (
    Reason.FIELD_VALIDATION, Reason.MEMORY_LIMIT_EXCEEDED, Reason.EMPTY_QUERY, Reason.TRIM_COUNT_TOO_LARGE,
)  # fmt: skip
"""Refusals that the model can mend by calling otherwise."""

_SHOWN_ID, _SHOWN_DEGRADED = 48, 160
_SHOWN_WHY = 400
"""Characters of a reason: it may quote what the model wrote, and that is as long as it likes."""
_UNIQUE_ID = re.compile(r"(.+)_(\d{1,18})(?:_\d+)?")
"""How a request names a call whose id repeats: with the offset of its row (R5)."""

_BOUNDS = {"filter.after_time": "after", "filter.before_time": "before"}
"""What the model calls the bounds of a search."""
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)

_LARGEST = (1 << 63) - 1
DESCRIPTION_BYTES = QUERY_BYTES = 16 * 1024

Role = Literal["user", "assistant", "tool"]


class SearchArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    query: str
    limit: int | None = None
    role: Role | None = None
    after: str | None = None
    before: str | None = None


class ReadArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    row: Annotated[int, msgspec.Meta(ge=1, le=_LARGEST)] | None = None
    call_id: str | None = None
    start: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)] | None = None


class CompactArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    description: Annotated[str, msgspec.Meta(min_length=1, max_length=DESCRIPTION_BYTES)]


class TrimArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)]
    description: Annotated[str, msgspec.Meta(min_length=1, max_length=DESCRIPTION_BYTES)]


SEARCH = AgentTool(
    "memory_search",
    "Searches earlier parts of this conversation that were summarized away and are no longer in view: what was said, "
    "tool calls and their results. Use it whenever a detail (a path, an identifier, an error, a decision, a number) is "
    "not in view, before asking the user again or repeating work. Hits quote the original text, each with the number "
    "of its row; read_result reads a row in full.",
    {
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "description": "What to look for: a question, or words and identifiers as they were written.",
            },
            "limit": {"type": "integer", "description": "Most hits, 1 to 20; 5 if left out."},
            "role": {
                "type": "string",
                "enum": list(get_args(Role)),
                "description": "Only what the user said, what you said and called, or what tools answered.",
            },
            "after": {
                "type": "string",
                "description": "Only from this time on, as 2025-01-31T12:00:00Z or 2025-01-31.",
            },
            "before": {"type": "string", "description": "Only up to this time; a day alone counts to its end."},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
)
READ = AgentTool(
    "read_result",
    "Reads the original text of an earlier row of this conversation in full: a tool result that was shortened, by its "
    "call id, or any row by its number, as memory_search and summaries give it (#123). Long texts come in parts; each "
    "part says where the next one starts.",
    {
        "type": "object",
        "properties": {
            "row": {"type": "integer", "description": "Number of the row."},
            "call_id": {"type": "string", "description": "Id of the tool call whose result to read, instead of a row."},
            "start": {"type": "integer", "description": "Byte to start at; 0 if left out."},
        },
        "required": [],
        "additionalProperties": False,
    },
)
COMPACT = AgentTool(
    "checkpoint_and_compact",
    "Saves a checkpoint and has the earlier part of this conversation summarized, so that there is room again. Use it "
    "when a part of the work is done and much of what is in view will not be needed word for word. What was summarized "
    "stays searchable.",
    {
        "type": "object",
        "properties": {
            "description": {"type": "string", "description": "What was done so far, for the record. At most 16 KiB."},
        },
        "required": ["description"],
        "additionalProperties": False,
    },
)
TRIM = AgentTool(
    "checkpoint_and_trim",
    "Saves a checkpoint and removes the oldest completed tool calls with their results from view; what was said stays. "
    "Use it when results that you have dealt with take up room. Say in the description what they did and found, since "
    "that is what remains in view of them; they stay searchable. The latest calls are never removed.",
    {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "description": "How many of the oldest completed tool calls to remove."},
            "description": {"type": "string", "description": "What these calls did and found. At most 16 KiB."},
        },
        "required": ["count", "description"],
        "additionalProperties": False,
    },
)
_CHECKPOINTS = (COMPACT, TRIM)


def agent_tools(
    services: Services, caller: Caller, session_id: str, fmt: Format
) -> tuple[tuple[AgentTool, ...], bytes]:
    """The tools that a session's policy allows, and the same as JSON of a provider's format.

    Raises:
        FoldlineError: SESSION_NOT_FOUND.
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        tools = _offered(services, live.session)
    return tools, services.formats.tools_json(fmt, tools)


def _offered(services: Services, session: Session) -> tuple[AgentTool, ...]:
    """Checkpoints only where they are on, and the list to fold or trim is kept here (§11, H1)."""
    saves = usage_marks.enabled(services, session) and session.ownership is Ownership.SIDECAR_OWNED
    return (SEARCH, READ, *(_CHECKPOINTS if saves else ()))


def call_agent_tool(
    services: Services, caller: Caller, session_id: str, name: str, arguments_json: str, request_id: str = ""
) -> ToolAnswer:
    """Runs a tool.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, REQUEST_ID_REUSED, CHECKPOINTS_DISABLED for a checkpoint tool where they are
            off, and what the store refuses or a fold fails of.
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        with live.locked():
            session = live.session
        found = repeated(services, caller, session.key, request_id)
        if found is not None:
            return answer_of(found, ToolAnswer)
        answer = _Call(services, caller, session, request_id).run(name, arguments_json)
        if not request_id:
            return answer
        with live.locked():
            found = repeated(services, caller, session.key, request_id)
            if found is not None:
                return answer_of(found, ToolAnswer)
            Draft(services, live).commit(remember(services, caller, request_id, answer))
            return answer


class _Call:
    """One call of a tool by an agent of a session."""

    def __init__(self, services: Services, caller: Caller, session: Session, request_id: str) -> None:
        self.services, self.caller, self.session, self.request_id = services, caller, session, request_id
        budget = services.policy(session).policy.memory.max_answer_tokens
        self.budget = max(MIN_TEXT_TOKENS, budget - HEAD_TOKENS)

    def run(self, name: str, arguments_json: str) -> ToolAnswer:
        offered = _offered(self.services, self.session)
        if name in (t.name for t in _CHECKPOINTS) and not usage_marks.enabled(self.services, self.session):
            raise disabled(self.session)
        tools: dict[str, Callable[[], ToolAnswer]] = {
            SEARCH.name: lambda: self._search(_arguments(arguments_json, SearchArguments)),
            READ.name: lambda: self._read(_arguments(arguments_json, ReadArguments)),
            COMPACT.name: lambda: self._compact(_arguments(arguments_json, CompactArguments)),
            TRIM.name: lambda: self._trim(_arguments(arguments_json, TrimArguments)),
        }
        names = [t.name for t in offered]
        if name not in names:
            there = f"{', '.join(names[:-1])} and {names[-1]}"
            return ToolAnswer(f"There is no tool {name}; there are {there}.", is_error=True)
        try:
            return tools[name]()
        except FoldlineError as error:
            if error.reason not in _AGENTS_OWN:
                raise
            return ToolAnswer(f"{name} was not run: {_clipped(error.message, _SHOWN_WHY)}.", is_error=True)

    def _compact(self, asked: CompactArguments) -> ToolAnswer:
        return self._save(asked.description, None)

    def _trim(self, asked: TrimArguments) -> ToolAnswer:
        return self._save(asked.description, asked.count)

    def _save(self, description: str, count: int | None) -> ToolAnswer:
        """Saved with its answer in one transaction: a repeat neither folds nor trims again (W2)."""
        size = len(description.encode())
        if size > DESCRIPTION_BYTES:
            raise _misused(f"the description has {size} bytes, at most {DESCRIPTION_BYTES} are kept", "description")
        save = SaveCheckpoint(self.session.session_id, description, count, self.request_id)
        return save_answering(self.services, self.caller, save, _told, ToolAnswer)

    def _search(self, asked: SearchArguments) -> ToolAnswer:
        size = len(asked.query.encode())
        if size > QUERY_BYTES:
            raise _misused(f"the query has {size} bytes, at most {QUERY_BYTES} are searched for", "query")
        where = MemoryFilter(
            roles=(EntryRole(asked.role.upper()),) if asked.role else (),
            after_time=asked.after or "",
            before_time=_through(asked.before or ""),
        )
        query = MemoryQuery(asked.query, limit=HITS if asked.limit is None else asked.limit, filter=where)
        try:
            answer = search_memory(self.services, self.caller, self.session.session_id, query, self.budget)
        except FoldlineError as error:
            bound = _BOUNDS.get(error.metadata.get("field", ""))
            if bound is None:
                raise
            raise _misused(
                f"{bound} is no time such as 2025-01-31T12:00:00Z, and no day such as 2025-01-31", bound
            ) from error
        if answer.scope_dropped:
            return ToolAnswer("The memory of this conversation was removed; there is nothing to search.")
        if not answer.hits:
            none = "Nothing was found. What is still in view is not searched; else try other words."
            lacks = f" Memory is degraded: {_clipped(answer.degraded, _SHOWN_DEGRADED)}." if answer.degraded else ""
            return ToolAnswer(f"{none}{lacks}")
        text = _hit(1, answer.hits[0])
        for number, hit in enumerate(answer.hits[1:], 2):
            longer = f"{text}\n\n{_hit(number, hit)}"
            if self._count(longer) > self.budget:
                break
            text = longer
        return ToolAnswer(f"{text}\n\nread_result reads the whole of a row by its number.")

    def _read(self, asked: ReadArguments) -> ToolAnswer:
        if (asked.row is None) == (asked.call_id is None):
            raise _misused("give row or call_id, one of them", "row")
        row = self._result_of(asked.call_id) if asked.row is None else asked.row
        start = asked.start or 0
        through = start + self.budget * TOKEN_BYTES
        part = read_row(self.services, self.caller, self.session.session_id, row, start, through)
        about = f"#{row}, {_described(part.row.body)}"
        if not part.total:
            return ToolAnswer(f"{about}: it holds no text.")
        text = self._within_budget(part.text)
        end = min(part.first_byte + len(text.encode()), part.total)
        rest = f"; the rest starts at {end}" if end < part.total else ""
        return ToolAnswer(f"{about}, bytes {part.first_byte} to {end} of {part.total}{rest}:\n{text}")

    def _count(self, text: str) -> int:
        return self.services.count(text, self.session.model)

    def _within_budget(self, text: str) -> str:
        """The longest beginning of a text that the budget holds."""
        low, high = (len(text), len(text)) if self._count(text) <= self.budget else (0, len(text) - 1)
        while low < high:
            middle = (low + high + 1) // 2
            if self._count(text[:middle]) <= self.budget:
                low = middle
            else:
                high = middle - 1
        return text[:low]

    def _result_of(self, call_id: str | None) -> int:
        """The row of a call's result: of the newest call of that id that has one."""
        found = self.services.store.find_calls(self.session.key, call_id or "")
        unique = _UNIQUE_ID.fullmatch(call_id or "")
        if not found and unique:
            calls = self.services.store.find_calls(self.session.key, unique[1])
            found = [c for c in calls if c.offset == int(unique[2])]
        if not found:
            raise _misused(f"there is no call {_clipped(call_id or '')} among the rows that are kept", "call_id")
        answered = [c.result_offset for c in found if c.result_offset is not None]
        if not answered:
            raise _misused(f"call {_clipped(call_id or '')} has no result yet", "call_id")
        return answered[-1]


def _told(saved: Saved) -> ToolAnswer:
    checkpoint = saved.checkpoint
    if checkpoint.kind is CheckpointKind.TRIM:
        what = f"{checkpoint.trimmed_calls} tool calls were removed from view; memory_search finds them"
    elif saved.record is None:
        spent = saved.skip is SkipReason.BUDGET
        what = f"nothing was summarized: {'the budget is spent' if spent else 'what there is has to stay in view'}"
    else:
        what = f"{saved.record.rows_summarized} earlier rows were summarized; memory_search finds them"
    return ToolAnswer(f"Checkpoint {checkpoint.checkpoint_id} is saved; {what}.")


def _arguments(text: str, kind: type[T]) -> T:
    """Arguments as models write them: numbers may come as text."""
    try:
        return msgspec.json.decode(text or "{}", type=kind, strict=False)
    except (msgspec.DecodeError, RecursionError) as error:
        names = ", ".join(kind.__struct_fields__)
        raise _misused(f"the arguments do not fit: {error}. They are a JSON object of {names}", "") from error


def _through(bound: str) -> str:
    """A last day as its end: whoever asks for what came up to a day means all of it."""
    return f"{bound}T23:59:59.999999Z" if _DAY.fullmatch(bound) else bound


def _misused(why: str, field: str) -> FoldlineError:
    return FoldlineError(Reason.FIELD_VALIDATION, why, field=f"arguments_json.{field}".removesuffix("."))


def _hit(number: int, hit: MemoryHit) -> str:
    entry = hit.entry
    about = [f"[{number}] #{entry.offset}", entry.role.lower(), entry.kind.lower().replace("_", " ")]
    if entry.call_id:
        about.append(f"call {_clipped(entry.call_id)}")
    if entry.create_time:
        about.append(entry.create_time[:19])
    return f"{', '.join(about)}:\n{entry.text}"


def _described(body: RowBody) -> str:
    kind = kind_of(body).name.lower().replace("_", " ")
    return f"{kind} of call {_clipped(body.call_id)}" if isinstance(body, ToolResultRow) else kind


def _clipped(text: str, most: int = _SHOWN_ID) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
