"""What the Responses API answers 400 to."""

from collections.abc import Iterator

from tests.validity.common import DATA_IMAGE, OPENAI_NAME, Message, text_faults

_RESPONSES_FIELDS: dict[str, set[str]] = {
    "message": {"role", "content", "id", "status", "phase"},
    "function_call": {"call_id", "name", "arguments", "id", "status", "namespace"},
    "function_call_output": {"call_id", "output", "id", "status"},
    "custom_tool_call": {"call_id", "name", "input", "id", "status", "namespace"},
    "custom_tool_call_output": {"call_id", "output", "id", "status"},
    "reasoning": {"id", "summary", "content", "encrypted_content", "status"},
    "computer_call": {"id", "call_id", "action", "actions", "pending_safety_checks", "status"},
    "computer_call_output": {"call_id", "output", "id", "acknowledged_safety_checks", "status"},
    "local_shell_call": {"id", "call_id", "action", "status"},
    "local_shell_call_output": {"id", "call_id", "output", "status"},
    "shell_call": {"call_id", "action", "id", "environment", "status"},
    "shell_call_output": {"call_id", "output", "id", "max_output_length", "status"},
    "apply_patch_call": {"call_id", "operation", "status", "id"},
    "apply_patch_call_output": {"call_id", "status", "id", "output"},
    "tool_search_call": {"id", "call_id", "arguments", "execution", "status"},
    "tool_search_output": {"id", "call_id", "tools", "execution", "status"},
    "web_search_call": {"id", "action", "status"},
    "file_search_call": {"id", "queries", "results", "status"},
    "code_interpreter_call": {"id", "code", "container_id", "outputs", "status"},
    "image_generation_call": {"id", "result", "status", "revised_prompt", "output_format", "size", "quality"},
    "mcp_list_tools": {"id", "server_label", "tools", "error"},
    "mcp_approval_request": {"id", "arguments", "name", "server_label"},
    "mcp_approval_response": {"approval_request_id", "approve", "id", "reason"},
    "mcp_call": {"id", "arguments", "name", "server_label", "approval_request_id", "error", "output", "status"},
    "item_reference": {"id"},
    "compaction": {"encrypted_content", "id"},
    "compaction_trigger": set(),
}
_RESPONSES_REQUIRED: dict[str, set[str]] = {
    "web_search_call": {"id"}, "file_search_call": {"id"}, "code_interpreter_call": {"id"}, "mcp_call": {"id"},
    "image_generation_call": {"id", "result"}, "mcp_list_tools": {"id", "tools"}, "mcp_approval_request": {"id"},
    "mcp_approval_response": {"approval_request_id", "approve"}, "item_reference": {"id"},
    "compaction": {"encrypted_content"}, "reasoning": {"summary"}, "local_shell_call": {"action"},
    "shell_call": {"action"}, "apply_patch_call": {"operation", "status"}, "apply_patch_call_output": {"status"},
    "tool_search_call": {"arguments"}, "tool_search_output": {"tools"},
}  # fmt: skip
_RESPONSES_PARTS: dict[str, dict[str, set[str]]] = {
    "user": {
        "input_text": {"text"},
        "input_image": {"image_url", "file_id", "detail"},
        "input_file": {"file_data", "file_id", "file_url", "filename", "detail"},
    },
    "assistant": {"output_text": {"text", "annotations", "logprobs"}, "refusal": {"refusal"}},
}
_RESPONSES_PREFIX = {"message": "msg", "function_call": "fc", "reasoning": "rs", "custom_tool_call": "ctc"}
_RESPONSES_CALLS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
}
_RESPONSES_ID = 64


def openai_responses_faults(request: Message) -> list[str]:
    """Faults of ``{instructions, input}``. Stricter than the API: outputs come directly behind their batch."""
    faults = [f"request: {what}" for what in text_faults(request)]
    faults += [f"request: unknown field {name}" for name in sorted(request.keys() - {"instructions", "input"})]
    if not isinstance(request.get("instructions", ""), str):
        faults.append("instructions: no string")
    items = request.get("input")
    if isinstance(items, str) and items:
        return faults
    if not isinstance(items, list) or not items:
        return [*faults, "input: empty"]
    ids: set[str] = set()
    pairing = _Pairing()
    for i, item in enumerate(items):
        kind = item.get("type", "message" if "role" in item else "item_reference")
        if kind not in _RESPONSES_FIELDS:
            faults.append(f"{i}: item of type {kind!r}")
            continue
        unknown = item.keys() - _RESPONSES_FIELDS[kind] - {"type"}
        faults += [f"{i}: {kind} with unknown field {name}" for name in sorted(unknown)]
        missing = _RESPONSES_REQUIRED.get(kind, set()) - item.keys()
        faults += [f"{i}: {kind} without {name}" for name in sorted(missing)]
        faults += [f"{i}: {what}" for what in _responses_id(kind, item, ids)]
        faults += [f"{i}: {what}" for what in pairing.take(kind, item)]
        if kind == "message":
            faults += [f"{i}: {what}" for what in _responses_message(item)]
        elif kind in ("function_call", "custom_tool_call"):
            faults += [f"{i}: {what}" for what in _responses_call(kind, item)]
        elif kind in _RESPONSES_CALLS.values():
            faults += [f"{i}: {what}" for what in _responses_output(kind, item)]
        elif kind == "reasoning":
            following = items[i + 1] if i + 1 < len(items) else None
            faults += [f"{i}: {what}" for what in _reasoning_faults(item, following)]
        elif kind == "compaction_trigger" and i + 1 < len(items):
            faults.append(f"{i}: a compaction trigger is not last")
    return faults + [f"end: {what}" for what in pairing.end()]


class _Pairing:
    """Calls that wait for their outputs, by call id."""

    def __init__(self) -> None:
        self.waiting: dict[str, str] = {}
        self.used: set[str] = set()
        self.answering = False

    def take(self, kind: str, item: Message) -> Iterator[str]:
        call_id = item.get("call_id", item.get("id") if kind.startswith("local_shell") else None)
        if kind in _RESPONSES_CALLS.values():
            if self.waiting.pop(str(call_id), None) != kind:
                yield f"{kind} of {call_id!r} follows no such call"
            self.answering = True
            return
        if self.waiting and (self.answering or not _is_of_answer(kind, item)):
            yield f"calls without outputs: {sorted(self.waiting)}"
            self.waiting = {}
        self.answering = False
        if kind in _RESPONSES_CALLS:
            if not isinstance(call_id, str) or not 0 < len(call_id) <= _RESPONSES_ID:
                yield f"call id {call_id!r}"
            if call_id in self.used:
                yield f"one call id twice: {call_id}"
            self.used.add(str(call_id))
            self.waiting[str(call_id)] = _RESPONSES_CALLS[kind]

    def end(self) -> Iterator[str]:
        if self.waiting:
            yield f"calls without outputs: {sorted(self.waiting)}"


def _is_of_answer(kind: str, item: Message) -> bool:
    if kind == "message":
        return item.get("role") == "assistant"
    return kind not in (*_RESPONSES_CALLS.values(), "mcp_approval_response", "compaction_trigger")


def _responses_id(kind: str, item: Message, ids: set[str]) -> Iterator[str]:
    item_id = item.get("id")
    if item_id is None or kind == "local_shell_call_output":
        return
    if not isinstance(item_id, str) or not 0 < len(item_id) <= _RESPONSES_ID:
        yield f"item id {item_id!r}"
    elif not item_id.startswith(_RESPONSES_PREFIX.get(kind, "")):
        yield f"item id {item_id!r} does not begin with {_RESPONSES_PREFIX[kind]}"
    if item_id in ids:
        yield f"one item id twice: {item_id}"
    ids.add(str(item_id))


def _responses_message(item: Message) -> Iterator[str]:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "system", "developer", "assistant"):
        yield f"role {role!r}"
        return
    if not isinstance(content, str | list):
        yield f"{role} message without content"
    elif not content:
        yield f"empty {role} message"
    if isinstance(content, list):
        yield from _responses_parts(content, "assistant" if role == "assistant" else "user", str(role))


def _responses_parts(content: list[Message], place: str, where: str) -> Iterator[str]:
    for part in content:
        kind = str(part.get("type"))
        known = _RESPONSES_PARTS[place].get(kind)
        if known is None or (kind != "input_text" and where in ("system", "developer")):
            yield f"{kind} part in a {where} message"
            continue
        for name in sorted(part.keys() - known - {"type"}):
            yield f"{kind} part with unknown field {name}"
        if kind in ("input_text", "output_text", "refusal"):
            if not isinstance(part.get("refusal" if kind == "refusal" else "text"), str):
                yield f"{kind} part without text"
        elif kind == "input_image":
            url = str(part.get("image_url"))
            if (
                not part.get("file_id")
                and not url.startswith(("http://", "https://"))
                and not DATA_IMAGE.fullmatch(url)
            ):
                yield f"image url {url[:40]!r}"
        elif not any(part.get(name) for name in ("file_id", "file_url", "file_data")):
            yield "file without an id, a url or data"
        elif part.get("file_data") and not part.get("filename"):
            yield "file data without a name"


def _responses_call(kind: str, item: Message) -> Iterator[str]:
    if not OPENAI_NAME.fullmatch(str(item.get("name"))):
        yield f"tool name {item.get('name')!r}"
    if not isinstance(item.get("arguments" if kind == "function_call" else "input"), str):
        yield f"arguments of {item.get('call_id')} are no string"


def _responses_output(kind: str, item: Message) -> Iterator[str]:
    output = item.get("output")
    if kind in ("function_call_output", "custom_tool_call_output"):
        if isinstance(output, list) and output:
            yield from _responses_parts(output, "user", "result")
        elif not isinstance(output, str):
            yield f"output is a {type(output).__name__}"
    elif kind == "computer_call_output":
        screen = output if isinstance(output, dict) else {}
        if screen.get("type") != "computer_screenshot" or not (screen.get("image_url") or screen.get("file_id")):
            yield "computer output is no screenshot"
    elif kind == "shell_call_output" and not isinstance(output, list):
        yield f"shell output is a {type(output).__name__}"
    elif kind == "local_shell_call_output" and not isinstance(output, str):
        yield f"output is a {type(output).__name__}"


def _reasoning_faults(item: Message, following: Message | None) -> Iterator[str]:
    if not isinstance(item.get("summary"), list):
        yield "reasoning without a summary"
    kind = (following or {}).get("type", "message")
    if following is None or not _is_of_answer(kind, following) or kind == "compaction":
        yield "reasoning without the item that follows it"
