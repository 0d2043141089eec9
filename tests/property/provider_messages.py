"""Strategies for conversations that the four APIs take, and for rows of every type."""

from itertools import pairwise
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


input_text = part(type="input_text", text=blank_or_not)
output_text = part(type="output_text", text=blank_or_not)
input_part = st.one_of(
    input_text,
    part(type="input_image", image_url=st.one_of(urls, base64.map(lambda d: f"data:image/png;base64,{d}"))),
    part(type="input_image", file_id=names, detail="auto"),
    part(type="input_file", filename=words, file_data=base64.map(lambda d: f"data:application/pdf;base64,{d}")),
    part(type="input_file", file_url=urls),
    part(type="input_file", file_id=names),
)
said_parts = st.lists(st.one_of(output_text, part(type="refusal", refusal=words)), min_size=1, max_size=2)
encrypted = st.text("gAbc=", min_size=1, max_size=9)
builtin_calls = {
    "computer_call": "action",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "tool_search_call": "arguments",
}


@st.composite
def responses_item(draw: st.DrawFn, number: str) -> Message:
    """An item that the model made, besides calls of the host."""
    kind = draw(st.sampled_from(["message", "message", "easy", "reasoning", "web", "image", "new", "compaction"]))
    if kind == "message":
        status = draw(st.sampled_from(["completed", "incomplete"]))
        head = {"type": "message", "role": "assistant"} | draw(
            maybe(status=st.just(status), phase=st.just("commentary"))
        )
        return head | ({"id": f"msg_{number}"} if draw(st.booleans()) else {}) | {"content": draw(said_parts)}
    if kind == "easy":
        return {"role": "assistant", "content": draw(words)} | draw(unknown)
    if kind == "reasoning":
        texts = st.lists(part(type="summary_text", text=blank_or_not), max_size=2)
        shown = part(type="reasoning", id=f"rs_{number}", summary=texts)
        return draw(shown) | draw(maybe(encrypted_content=st.one_of(st.none(), encrypted), content=st.none()))
    if kind == "web":
        return draw(part(type="web_search_call", id=f"ws_{number}", status="completed", action=objects))
    if kind == "image":
        result = st.one_of(st.none(), base64)
        return draw(part(type="image_generation_call", id=f"ig_{number}", status="completed", result=result))
    if kind == "compaction":
        return draw(part(type="compaction", id=f"cmp_{number}", encrypted_content=encrypted))
    return draw(part(type="telepathy_call", id=f"tp_{number}", thought=objects))


@st.composite
def responses_call(draw: st.DrawFn, number: str) -> tuple[Message, Message]:
    """A call and its output."""
    call_id = f"call_{number}"
    kind = draw(st.sampled_from(["function_call", "function_call", "custom_tool_call", *builtin_calls]))
    call: Message = {"type": kind, "call_id": call_id} | draw(unknown) | draw(maybe(status=st.just("completed")))
    output: Message = {"call_id": call_id} | draw(unknown)
    if kind in ("function_call", "custom_tool_call"):
        call |= {"name": draw(names), "arguments" if kind == "function_call" else "input": draw(blank_or_not)}
        call |= {"id": f"{'fc' if kind == 'function_call' else 'ctc'}_{number}"} if draw(st.booleans()) else {}
        told = draw(st.one_of(st.just(""), words, st.lists(input_part, max_size=2)))
        return call, output | {"type": f"{kind}_output", "output": told}
    call |= {builtin_calls[kind]: draw(objects), "id": f"{kind[:2]}_{number}"}
    if kind == "computer_call":
        output["output"] = draw(part(type="computer_screenshot", image_url=urls))
    elif kind == "tool_search_call":
        return call, output | {"type": "tool_search_output", "tools": draw(st.lists(objects, max_size=2))}
    elif kind == "shell_call":
        output["output"] = draw(st.lists(part(stdout=blank_or_not, stderr="", outcome=objects), max_size=2))
    elif kind == "apply_patch_call":
        output |= {"status": draw(st.sampled_from(["completed", "failed"]))} | draw(maybe(output=blank_or_not))
    else:
        output["output"] = draw(blank_or_not)
    return call, output | {"type": f"{kind}_output"}


@st.composite
def responses_answer(draw: st.DrawFn, number: int) -> list[Message]:
    """The items of an answer, with the outputs of its calls; reasoning never ends it."""
    made = [draw(responses_item(f"{number}_{i}")) for i in range(draw(st.integers(0, 3)))]
    pairs = [draw(responses_call(f"{number}_{i}")) for i in range(draw(st.integers(0, 3)))]
    items = draw(st.permutations([*made, *(call for call, _ in pairs)]))
    last = items[-1].get("type", "message") if items else "reasoning"
    if last in ("reasoning", "compaction") or not items:
        items = [*items, {"type": "message", "role": "assistant", "content": draw(said_parts)}]
    paired = [(a.get("type"), b.get("type")) for a, b in pairwise(items)]
    if ("reasoning", "compaction") in paired:
        items = [item for item in items if item.get("type") != "compaction"]
    return [*items, *draw(st.permutations([output for _, output in pairs]))]


@st.composite
def responses_requests(draw: st.DrawFn) -> Message:
    """``{instructions, input}`` as the Responses API takes it, with items and fields that no API has yet."""
    items: list[Message] = []
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["user", "user", "system", "answer", "answer", "approval"]))
        if kind == "answer":
            items += draw(responses_answer(number))
        elif kind == "approval":
            items.append({"type": "mcp_approval_response", "approval_request_id": f"mcpr_{number}", "approve": True})
        elif kind == "user":
            said = st.one_of(words, st.lists(input_part, min_size=1, max_size=3))
            items.append(draw(part(role="user", content=said)) | draw(maybe(type=st.just("message"))))
        else:
            said = st.one_of(words, st.lists(input_text, min_size=1, max_size=2))
            items.append(draw(part(role=st.sampled_from(["system", "developer"]), content=said)))
    given: Any = items if len(items) > 1 or draw(st.booleans()) else draw(words)
    return draw(maybe(instructions=st.one_of(st.just(""), words))) | {"input": given}


signature = st.text("AQab/+_-", min_size=4, max_size=8)
google_media = st.one_of(
    part(
        inlineData=part(
            mimeType=st.sampled_from(["image/png", "audio/wav", "video/mp4", "application/pdf"]), data=base64
        )
    ),
    part(fileData=part(mimeType=st.sampled_from(["image/png", "video/mp4"]), fileUri=urls), videoMetadata=objects),
    part(fileData=part(fileUri=urls)),
)
google_text = part(text=blank_or_not)
_SNAKE = {
    "inlineData": "inline_data", "fileData": "file_data", "functionCall": "function_call",
    "functionResponse": "function_response", "thoughtSignature": "thought_signature", "mimeType": "mime_type",
    "fileUri": "file_uri", "executableCode": "executable_code", "codeExecutionResult": "code_execution_result",
    "videoMetadata": "video_metadata",
}  # fmt: skip


def snake(value: Message) -> Message:
    """A part with its own fields and its blob's in snake_case."""
    blobs = {
        k: {_SNAKE.get(i, i): v for i, v in b.items()} for k, b in value.items() if k in ("inlineData", "fileData")
    }
    return {_SNAKE.get(k, k): v for k, v in (value | blobs).items()}


@st.composite
def spelled(draw: st.DrawFn, strategy: st.SearchStrategy[Message]) -> Message:
    value = draw(strategy)
    return snake(value) if draw(st.integers(0, 3)) == 0 else value


@st.composite
def google_said(draw: st.DrawFn) -> Message:
    """A part that the model made, besides calls of the host."""
    signed = draw(maybe(thoughtSignature=signature))
    kind = draw(st.sampled_from(["text", "text", "thought", "image", "new"]))
    if kind == "thought":
        return draw(part(text=blank_or_not, thought=True)) | signed
    if kind == "image":
        return draw(part(inlineData=part(mimeType="image/png", data=base64))) | signed
    return (draw(google_text) if kind == "text" else {"dream": draw(objects)}) | signed


@st.composite
def google_answer(draw: st.DrawFn, number: int) -> list[Message]:
    """A model's content with the content that answers its calls, if it made any."""
    parts = draw(st.lists(spelled(google_said()), max_size=2))
    if draw(st.booleans()):
        parts += [draw(part(executableCode=part(language="PYTHON", code=words)))]
        parts += [draw(part(codeExecutionResult=part(outcome="OUTCOME_OK", output=blank_or_not)))]
    called = draw(st.lists(st.sampled_from(["soil", "vent", "water"]), max_size=3))
    has_ids = draw(st.booleans())
    calls: list[Message] = []
    answers: list[Message] = []
    for i, name in enumerate(called):
        named: Message = {"name": name} | ({"id": f"g{number}_{i}"} if has_ids else {})
        call = {"functionCall": named | draw(maybe(args=st.one_of(objects, st.none())))} | draw(unknown)
        calls.append(call | draw(maybe(thoughtSignature=signature)))
        text_of = st.sampled_from(["output", "error", "result", "content"]).flatmap(
            lambda key: blank_or_not.map(lambda said: {key: said})
        )
        media = st.lists(part(inlineData=part(mimeType="image/png", data=base64)), max_size=1)
        told = {"response": draw(st.one_of(text_of, objects))} | draw(maybe(parts=media, willContinue=st.booleans()))
        answers.append({"functionResponse": named | told} | draw(unknown))
    if not parts and not calls:
        parts = [draw(google_text)]
    answer: Message = {"role": "model", "parts": [*parts, *(snake(c) if draw(st.booleans()) else c for c in calls)]}
    if not calls:
        return [answer]
    more = draw(st.lists(spelled(st.one_of(google_text, google_media)), max_size=2))
    role = draw(st.sampled_from(["user", "user", "function"]))
    return [answer, {"role": role, "parts": [*draw(st.permutations(answers)), *more]} | draw(unknown)]


@st.composite
def google_requests(draw: st.DrawFn) -> Message:
    """``{systemInstruction, contents}``, neighbours of one role included."""
    contents: list[Message] = []
    for number in range(draw(st.integers(1, 5))):
        if not contents or draw(st.booleans()):
            parts = draw(st.lists(spelled(st.one_of(google_text, google_media)), min_size=1, max_size=3))
            contents.append({"role": "user", "parts": parts} | draw(unknown))
        else:
            contents += draw(google_answer(number))
    system = part(parts=st.lists(google_text, min_size=1, max_size=2))
    name = draw(st.sampled_from(["systemInstruction", "system_instruction"]))
    return ({name: draw(system)} if draw(st.booleans()) else {}) | {"contents": contents}


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
models = st.sampled_from(
    [ModelRef(), ModelRef("openai", "gpt-x"), ModelRef("anthropic", "claude-x"), ModelRef("google", "gemini-x")]
)


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
