"""V1-V7 and R5 over recorded sessions, folded whenever they cross a small threshold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from foldline.domain.folding import FoldScope
from foldline.domain.rows import ContentBlock, SystemRow, TextBlock, ToolCallBlock

from tests.property.test_render_properties import arranged, assert_valid
from tests.strategies import Host, count

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

Step = tuple[str, str, list[ToolCallBlock], str, bool]
"""Role, text, calls of an assistant, call id and error of a result."""


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(p.get("text", "") for p in content or [] if p.get("type") == "text")


def coding_session() -> Iterator[list[Step]]:
    steps: list[Step] = []
    for line in (DATA / "coding-session.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry.get("type") != "message":
            continue
        message = entry["message"]
        role, text = message["role"], _text(message.get("content"))
        if role == "assistant":
            calls = [
                ToolCallBlock(p["id"], p["name"], json.dumps(p.get("arguments", {})))
                for p in message["content"]
                if p["type"] == "toolCall"
            ]
            steps.append(("assistant", text, calls, "", False))
        elif role == "toolResult":
            steps.append(("tool", text, [], message["toolCallId"], bool(message.get("isError"))))
        else:
            steps.append(("user", text or "(no text)", [], "", False))
    yield steps


def chats(messages: list[dict[str, Any]]) -> list[Step]:
    steps: list[Step] = []
    for message in messages:
        calls = [
            ToolCallBlock(c["id"], c["function"]["name"], str(c["function"]["arguments"]))
            for c in message.get("tool_calls") or []
        ]
        call_id = message.get("tool_call_id") or (message.get("tool_call_ids") or [""])[0]
        steps.append((message["role"], _text(message.get("content")), calls, call_id, False))
    return steps


def airline_runs() -> Iterator[list[Step]]:
    for run in json.loads((DATA / "airline-runs.json").read_text()):
        yield chats(run["traj"])


def trajectory(name: str) -> Callable[[], Iterator[list[Step]]]:
    def load() -> Iterator[list[Step]]:
        yield chats(json.loads((DATA / name).read_text())["history"])

    return load


FILES: dict[str, Callable[[], Iterator[list[Step]]]] = {
    "coding-session.jsonl": coding_session,
    "airline-runs.json": airline_runs,
    "bugfix-function-calling.traj": trajectory("bugfix-function-calling.traj"),
    "bugfix-text-actions.traj": trajectory("bugfix-text-actions.traj"),
}


def replay(steps: list[Step], threshold: int) -> tuple[int, set[FoldScope]]:
    """Plays a recording through a host that folds at each boundary over the threshold; folds and their scopes."""
    host, folds, scopes = Host(), 0, set[FoldScope]()
    for role, text, calls, call_id, is_error in steps:
        if role == "tool":
            if any(c.call_id == call_id and not c.answered for c in host.session.calls):
                host.result(call_id, text or "(no text)", is_error=is_error)
        elif role == "assistant":
            blocks: list[ContentBlock] = [*([TextBlock(text)] if text else []), *calls]
            if not blocks:
                continue
            host.prepare()
            tokens = sum(count(text) for text in _texts(host))
            if tokens >= threshold:
                folded = host.fold(host.inputs(threshold))
                if folded is not None:
                    assert folded.failures == ()
                    folds, scopes = folds + 1, scopes | {folded.plan.scope}
                    assert_valid(arranged(host))
            host.answer(*blocks)
        elif role == "system":
            host.append(SystemRow((TextBlock(text),)))
        else:
            if host.session.open_run is not None:
                host.finish()
            host.user(text or "(no text)")
    assert_valid(arranged(host))
    return folds, scopes


def _texts(host: Host) -> Iterator[str]:
    for row in host.rows:
        for block in getattr(row.body, "content", ()):
            yield getattr(block, "text", "") or getattr(block, "arguments_json", "")


@pytest.mark.parametrize("threshold", [25_600, 6_400, 2_000])
@pytest.mark.parametrize("name", FILES)
def test_recorded_sessions_fold_and_hold(name: str, threshold: int) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not here")
    folds, seen = 0, set[FoldScope]()
    for steps in FILES[name]():
        some, scopes = replay(steps, threshold)
        folds, seen = folds + some, seen | scopes
    assert folds > 0 or threshold > 2_000
    if name == "coding-session.jsonl":
        assert seen >= {FoldScope.WHOLE, FoldScope.STAGE_1, FoldScope.STAGE_2}
