"""Strategies for conversations that the two APIs take, and for rows of every type."""

from typing import Any

from foldline.domain.enums import StopReason
from foldline.domain.rows import (
    AssistantRow,
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    InjectedContextRow,
    ModelRef,
    NewRow,
    NoticeRow,
    ReasoningBlock,
    ServerToolBlock,
    StructuredBlock,
    SystemRow,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    TranscriptBlock,
    UserRow,
    VideoBlock,
)
from hypothesis import strategies as st

Message = dict[str, Any]

numbers = st.one_of(st.integers(-5, 5), st.integers(10**20, 10**30), st.floats(allow_nan=False, allow_infinity=False))
leaves = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8))
values = st.one_of(
    leaves,
    st.lists(leaves, max_size=2),
    st.dictionaries(st.text(max_size=5), st.one_of(leaves, st.lists(leaves, max_size=1)), max_size=2),
)
objects = st.dictionaries(st.text(max_size=6), values, max_size=3)
blank_or_not = st.text(max_size=20)
words = blank_or_not.filter(lambda s: bool(s.strip()))
unknown = st.one_of(st.just({}), st.just({}), st.dictionaries(st.sampled_from(["x_1", "x_é", "X"]), values, max_size=2))
"""Fields that no API has yet."""
names = st.from_regex(r"[a-zA-Z0-9_-]{1,12}", fullmatch=True)
base64 = st.sampled_from(["aWs=", "JVBERi0=", "UklGRg==", "AAAA"])
urls = st.sampled_from(["https://example.org/a.png", "http://example.org/b"])


@st.composite
def maybe(draw: st.DrawFn, **fields: st.SearchStrategy[Any]) -> Message:
    """Some of the fields."""
    return {name: draw(strategy) for name, strategy in fields.items() if draw(st.booleans())}


@st.composite
def part(draw: st.DrawFn, **fields: Any) -> Message:
    """An object of fixed and drawn fields, with unknown ones beside them."""
    fixed = {k: draw(v) if isinstance(v, st.SearchStrategy) else v for k, v in fields.items()}
    return fixed | draw(unknown)


chat_text = part(type="text", text=blank_or_not)
chat_user_part = st.one_of(
    chat_text,
    part(
        type="image_url",
        image_url=part(url=st.one_of(urls, base64.map(lambda d: f"data:image/png;base64,{d}"))),
    ),
    part(type="input_audio", input_audio=part(data=base64, format=st.sampled_from(["wav", "mp3"]))),
    part(type="file", file=part(filename=words, file_data=base64.map(lambda d: f"data:application/pdf;base64,{d}"))),
    part(type="file", file=part(file_id=names)),
)


def chat_content(parts: st.SearchStrategy[Message]) -> st.SearchStrategy[Any]:
    return st.one_of(words, st.lists(parts, min_size=1, max_size=3))


@st.composite
def chat_answer(draw: st.DrawFn) -> list[Message]:
    """An answer with its results, if it made calls."""
    message: Message = {"role": "assistant"} | draw(unknown)
    message |= draw(maybe(name=names, refusal=st.none(), annotations=st.lists(objects, max_size=1)))
    kind = draw(st.sampled_from(["text", "calls", "function", "audio", "refusal"]))
    answer_part = st.one_of(chat_text, part(type="refusal", refusal=words))
    if kind == "text":
        message["content"] = draw(chat_content(answer_part))
        message |= draw(maybe(tool_calls=st.sampled_from([[], None]), reasoning_content=st.text(max_size=8)))
        return [message]
    if kind in ("audio", "refusal"):
        message["content"] = None
        message[kind] = draw(words) if kind == "refusal" else draw(part(id=names))
        return [message]
    if kind == "function":
        name = draw(names)
        message |= {
            "content": draw(st.one_of(st.none(), words)),
            "function_call": draw(part(name=name, arguments=st.text(max_size=9))),
        }
        return [message, {"role": "function", "name": name, "content": draw(words)} | draw(unknown)]
    ids = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    message |= draw(maybe(content=st.one_of(st.none(), st.just(""), chat_content(answer_part))))
    message["tool_calls"] = [draw(chat_call(call_id)) for call_id in ids]
    said = st.one_of(st.just(""), chat_content(chat_text))
    results = [draw(part(role="tool", tool_call_id=i, content=said)) for i in draw(st.permutations(ids))]
    return [message, *results]


@st.composite
def chat_call(draw: st.DrawFn, call_id: str) -> Message:
    if draw(st.booleans()):
        custom = draw(part(name=names, input=blank_or_not))
        return {"id": call_id, "type": "custom", "custom": custom} | draw(unknown)
    function = draw(part(name=names, arguments=st.one_of(st.just("{}"), blank_or_not)))
    return {"id": call_id, "type": "function", "function": function} | draw(unknown)


@st.composite
def chat_messages(draw: st.DrawFn) -> list[Message]:
    """A conversation as chat completions takes it, with fields and parts that only compatible servers know."""
    out: list[Message] = []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["system", "user", "answer", "answer"]))
        if kind == "answer":
            out += draw(chat_answer())
        elif kind == "user":
            out.append(
                {"role": "user", "content": draw(chat_content(chat_user_part))}
                | draw(unknown)
                | draw(maybe(name=names))
            )
        else:
            role = draw(st.sampled_from(["system", "developer"]))
            out.append({"role": role, "content": draw(chat_content(chat_text))} | draw(unknown))
    return out


text_block = part(type="text", text=words)
image_block = part(
    type="image",
    source=st.one_of(
        part(type="base64", media_type="image/png", data=base64),
        part(type="url", url=urls),
        part(type="file", file_id=names),
    ),
)
document_block = st.one_of(
    part(
        type="document",
        source=part(type="text", media_type="text/plain", data=words),
        title=st.one_of(st.none(), words),
    ),
    part(type="document", source=part(type="base64", media_type="application/pdf", data=base64)),
    part(type="document", source=part(type="content", content=st.lists(text_block, min_size=1, max_size=2))),
    part(type="document", source=part(type="file", file_id=names)),
)
user_block = st.one_of(text_block, image_block, document_block, part(type="search_result", source=words, title=words))
result_content = st.one_of(st.just(""), words, st.lists(st.one_of(text_block, image_block, document_block), max_size=2))
thinking_block = st.one_of(
    part(type="thinking", thinking=st.text(max_size=9), signature=st.text(max_size=9)),
    part(type="redacted_thinking", data=words),
)


@st.composite
def anthropic_answer(draw: st.DrawFn, number: int) -> list[Message]:
    """An answer with its results, if it made calls; ids are unique by ``number``."""
    blocks = draw(st.lists(st.one_of(thinking_block, text_block), max_size=2))
    if draw(st.booleans()):
        server = {"type": "server_tool_use", "id": f"srvtoolu_{number}", "name": draw(names), "input": draw(objects)}
        found = {"type": "web_search_tool_result", "tool_use_id": f"srvtoolu_{number}", "content": draw(values)}
        blocks += [server | draw(unknown), found | draw(unknown)]
    calls = [
        {"type": "tool_use", "id": f"t{number}_{i}", "name": draw(names), "input": draw(objects)} | draw(unknown)
        for i in range(draw(st.integers(0, 3)))
    ]
    if not calls:
        blocks.append(draw(text_block))
    answer: Message = {"role": "assistant", "content": blocks + calls} | draw(unknown)
    if not calls:
        if draw(st.booleans()):
            answer["content"] = draw(words)
        return [answer]
    more = maybe(content=result_content, is_error=st.booleans())
    results = [
        draw(part(type="tool_result", tool_use_id=call["id"])) | draw(more) for call in draw(st.permutations(calls))
    ]
    content = [*map(_filled, results), *draw(st.lists(user_block, max_size=2))]
    return [answer, draw(part(role="user", content=content))]


def _filled(result: Message) -> Message:
    """An error needs content."""
    return result | {"content": "failed"} if result.get("is_error") and not result.get("content") else result


@st.composite
def anthropic_requests(draw: st.DrawFn) -> Message:
    """``{system, messages}`` as the messages API takes it, neighbours of one role included."""
    messages: list[Message] = []
    for number in range(draw(st.integers(1, 5))):
        if not messages or draw(st.booleans()):
            content = draw(st.one_of(words, st.lists(user_block, min_size=1, max_size=3)))
            messages.append({"role": "user", "content": content} | draw(unknown))
        else:
            messages += draw(anthropic_answer(number))
    return draw(maybe(system=st.one_of(st.just(""), words, st.lists(text_block, max_size=2)))) | {"messages": messages}


any_text = st.text(max_size=20)
content_blocks = st.one_of(
    any_text.map(TextBlock),
    any_text.map(TranscriptBlock),
    values.map(lambda v: StructuredBlock(repr(v))),
    st.builds(ImageBlock, st.sampled_from(["image/png", "image/tiff", ""]), base64),
    st.builds(lambda url: ImageBlock(url=url), st.sampled_from(["https://example.org", "", "file:///x"])),
    st.builds(VideoBlock, st.just("video/mp4"), base64),
    st.builds(AudioBlock, st.sampled_from(["audio/wav", "audio/flac"]), base64),
    st.builds(
        DocumentBlock, st.sampled_from(["application/pdf", "text/plain", "text/csv", ""]), base64, title=any_text
    ),
)
spoken_blocks = st.one_of(
    content_blocks,
    st.builds(ReasoningBlock, any_text, any_text, any_text, st.booleans()),
    st.builds(ServerToolBlock, st.sampled_from(["srvtoolu_1", "ws_1", ""]), any_text, any_text, st.just(False)),
)
contents = st.lists(content_blocks, min_size=1, max_size=3).map(tuple)
call_ids = st.one_of(st.sampled_from(["a", "b", "a.b"]), st.text(min_size=1, max_size=60))
models = st.sampled_from([ModelRef(), ModelRef("openai", "gpt-x"), ModelRef("anthropic", "claude-x")])


@st.composite
def row_lists(draw: st.DrawFn) -> list[NewRow]:
    """Rows as hosts may append them: of every type, call ids used again, results missing or of several blocks."""
    rows: list[NewRow] = []
    for _ in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from([SystemRow, UserRow, InjectedContextRow, NoticeRow, AssistantRow, AssistantRow]))
        if kind is not AssistantRow:
            rows.append(NewRow(kind(draw(contents))))
            continue
        ids = draw(st.lists(call_ids, max_size=3, unique=True))
        calls = [
            ToolCallBlock(i, draw(st.text(min_size=1, max_size=70)), draw(st.one_of(st.just("{}"), any_text)))
            for i in ids
        ]
        blocks = (*draw(st.lists(spoken_blocks, min_size=0 if calls else 1, max_size=3)), *calls)
        stop = draw(st.sampled_from([None, StopReason.END_TURN, StopReason.ABORTED]))
        rows.append(NewRow(AssistantRow(blocks, draw(models), stop)))
        for call_id in draw(st.permutations(ids)):
            if draw(st.integers(0, 4)):
                result = ToolResultRow(call_id, draw(st.one_of(st.just(()), contents)), is_error=draw(st.booleans()))
                rows.append(NewRow(result))
    return rows
