"""What a summary is built from: rows read once into requests, statements, calls with outcomes, and speech (S8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from foldline.domain.enums import StopReason, TranscriptSource
from foldline.domain.folding import has_unmeasured_speech
from foldline.domain.policy import MASK
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    InjectedContextRow,
    NoticeRow,
    Row,
    ToolCallBlock,
    ToolResultRow,
    TranscriptBlock,
    UserRow,
    calls_of,
    identity_of,
)
from foldline.domain.session import CALL_FAILED, CALL_RAN, CALL_UNANSWERED
from foldline.summarize.outcomes import brief_call, looks_failed, main_argument
from foldline.summarize.text import clip, defuse, one_line, plain, sentences, without_reasoning


@dataclass(slots=True)
class Request:
    """A user row, or a notice, whose kind is then the ``speaker``.

    Attributes:
        answered: offset of the turn's last words, None while it had not ended.
        reply: these words.
        sentences: of ``text``.
    """

    offset: int
    text: str
    speaker: str = "user"
    answered: int | None = None
    reply: Statement | None = None
    sentences: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sentences = sentences(self.text)


@dataclass(slots=True)
class Call:
    """A call with what came of it.

    Attributes:
        target: the argument that says what it was about; ``brief`` is all of it in words.
        arguments: its short scalar arguments, one a line.
        outcome: one of the words of the call ledger (F3).
        result: head and tail of what came back.
        order: position among the calls.
    """

    offset: int
    name: str
    target: str
    brief: str
    arguments: str = ""
    outcome: str = CALL_UNANSWERED
    result_offset: int = 0
    result: str = ""
    order: int = 0


@dataclass(slots=True)
class Statement:
    """Text of an assistant row, and its sentences. ``final`` closes its turn: nothing was called after it."""

    offset: int
    text: str
    final: bool = False
    sentences: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sentences = sentences(self.text)


@dataclass(slots=True)
class Reading:
    """The rows of one fold, in list order; every text is masked and defused."""

    first: int = 0
    last: int = 0
    rows: int = 0
    requests: list[Request] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    context: list[Statement] = field(default_factory=list)
    speech: list[Statement] = field(default_factory=list)


_RESULT_HEAD, _RESULT_TAIL = 1500, 500
_ARGUMENT_CHARS = 400
_REPEATED, _REPEATED_SHARE = 3, 0.4


def read_rows(rows: Sequence[Row], mask: Callable[[str], str]) -> Reading:
    """Reads rows; ``mask`` hides secrets and is applied before anything is cut."""
    reading = Reading(rows=len(rows))
    if rows:
        reading.first, reading.last = min(r.offset for r in rows), max(r.offset for r in rows)
    open_calls: dict[tuple[int | None, str], Call] = {}
    newest: dict[str, Call] = {}

    def clean(text: str) -> str:
        return defuse(mask(text)).strip()

    for row in rows:
        body = row.body
        if isinstance(body, UserRow):
            reading.requests.append(Request(row.offset, clean(plain(body.content))))
        elif isinstance(body, NoticeRow):
            speaker = clip(one_line(clean(body.kind)), 40) or "notice"
            reading.requests.append(Request(row.offset, clean(plain(body.content)), speaker))
        elif isinstance(body, InjectedContextRow):
            reading.context.append(Statement(row.offset, clean(plain(body.content))))
        elif isinstance(body, AssistantRow):
            _read_assistant(row, body, reading, clean)
            made = identity_of(row)
            for block in calls_of(body):
                call = _read_call(made, block, clean, len(reading.calls))
                reading.calls.append(call)
                open_calls[(made, block.call_id)] = newest[block.call_id] = call
        elif isinstance(body, ToolResultRow):
            known = open_calls.get((body.call_offset, body.call_id)) or newest.get(body.call_id)
            call = known or _late_call(row.offset, clean(body.call_id), reading)
            _read_result(row.offset, body, call, mask)
        elif isinstance(body, CompactionSummaryRow):
            reading.context.append(Statement(row.offset, clean(body.text)))
    _close_turns(reading)
    _drop_repeated(reading)
    return reading


def _read_assistant(row: Row, body: AssistantRow, reading: Reading, clean: Callable[[str], str]) -> None:
    if has_unmeasured_speech(row):
        for block in body.content:
            if isinstance(block, TranscriptBlock) and block.source == TranscriptSource.SPOKEN_UNMEASURED:
                reading.speech.append(Statement(row.offset, block.text))
    said = clean(without_reasoning(plain(body.content)))
    if said:
        ended = not calls_of(body) and body.stop_reason not in (StopReason.PAUSED, StopReason.MAX_TOKENS)
        reading.statements.append(Statement(identity_of(row), said, final=ended))


def _read_call(offset: int, block: ToolCallBlock, clean: Callable[[str], str], order: int) -> Call:
    arguments = _read_arguments(block.arguments_json, clean)
    name = one_line(clean(block.name))
    scalars = "\n".join(_scalars(arguments))
    return Call(offset, name, main_argument(arguments), brief_call(name, arguments), scalars, order=order)


def _read_arguments(arguments_json: str, clean: Callable[[str], str]) -> dict[str, object] | str:
    """Arguments as a mapping with cleaned texts, or as cleaned text where they are no JSON object."""
    try:
        value = msgspec.json.decode(arguments_json)
        if isinstance(value, dict):
            return {clean(str(k)): _cleaned(v, clean) for k, v in value.items()}
    except (msgspec.DecodeError, RecursionError):
        pass
    return arguments_text(arguments_json, clean)


def _cleaned(value: object, clean: Callable[[str], str]) -> object:
    """A JSON value with its texts cleaned, however deep they stand."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(v, clean) for v in value]
    if isinstance(value, dict):
        return {clean(str(k)): _cleaned(v, clean) for k, v in value.items()}
    return value


def arguments_text(arguments_json: str, clean: Callable[[str], str]) -> str:
    """Arguments as they are but for secrets, also those that only show once escapes of JSON are undone (S4)."""
    text = clean(arguments_json)
    if "\\" not in arguments_json:
        return text
    try:
        plainly = clean(msgspec.json.encode(msgspec.json.decode(arguments_json)).decode())
    except (msgspec.DecodeError, RecursionError):
        return text
    return plainly if plainly.count(MASK) > text.count(MASK) else text


def _scalars(value: object) -> list[str]:
    """The plain values of arguments in order, however deep they are nested."""
    found: list[str] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += reversed(one.values())
        elif isinstance(one, list):
            waiting += reversed(one[:50])
        elif one is not None and not isinstance(one, bool):
            found.append(str(one)[:_ARGUMENT_CHARS])
    return found


def _late_call(offset: int, call_id: str, reading: Reading) -> Call:
    """Stands for a call whose row is not among these: only its result came (R3)."""
    call = Call(offset, "result", "", f"late result of call {call_id}", order=len(reading.calls))
    reading.calls.append(call)
    return call


def _read_result(offset: int, body: ToolResultRow, call: Call, mask: Callable[[str], str]) -> None:
    text = mask(plain(body.content))
    if len(text) > _RESULT_HEAD + _RESULT_TAIL:
        text = text[:_RESULT_HEAD] + "\n" + text[-_RESULT_TAIL:]
    text = defuse(text).strip()
    call.result, call.result_offset = text, offset
    if not body.interim:
        call.outcome = CALL_FAILED if body.is_error or looks_failed(text) else CALL_RAN


def _drop_repeated(reading: Reading) -> None:
    """Takes out of results and notices the lines that most of them have, a prompt or a footer say: they tell nothing.

    The last notice is whole: it may be what the agent was last asked for.
    """
    notices = [r for r in reading.requests if r.speaker != "user"]
    texts = [c.result for c in reading.calls if c.result] + [n.text for n in notices]
    found = Counter(line for text in texts for line in {one_line(raw) for raw in text.splitlines()} if line)
    most = max(_REPEATED, int(_REPEATED_SHARE * len(texts)))
    repeated = {line for line, times in found.items() if times > most}
    if not repeated:
        return
    for call in reading.calls:
        call.result = _without(call.result, repeated)
    for notice in notices[:-1]:
        notice.text = _without(notice.text, repeated)


def _without(text: str, repeated: set[str]) -> str:
    kept = "\n".join(line for line in text.splitlines() if one_line(line) not in repeated).strip()
    return kept or text


def _close_turns(reading: Reading) -> None:
    """Finds for each request the words that closed it: the last statement before the next request, if it ended."""
    position = 0
    for index, request in enumerate(reading.requests):
        until = reading.requests[index + 1].offset if index + 1 < len(reading.requests) else None
        while position < len(reading.statements):
            statement = reading.statements[position]
            if until is not None and statement.offset > until > request.offset:
                break
            if statement.offset > request.offset:
                request.answered = statement.offset if statement.final else None
                request.reply = statement
            position += 1
