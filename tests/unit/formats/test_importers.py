"""Recorded conversations become model calls; what is odd in them is kept or named (R3, R4, L1)."""

import json
from collections import Counter

import pytest
from foldline import formats
from foldline.domain.enums import Format, RowKind, StopReason, WarningCode
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.rows import (
    AssistantRow,
    ImageBlock,
    InjectedContextRow,
    ModelRef,
    NoticeRow,
    ReasoningBlock,
    ToolResultRow,
    calls_of,
    kind_of,
)
from foldline.formats.importers import load, load_bytes

from tests.unit.formats.transcripts import FIXTURES, REAL, arranged
from tests.unit.formats.transcripts import load as from_json
from tests.validity import anthropic_faults, openai_chat_faults

RECORDED = ["coding-session.jsonl", "airline-runs.json", "bugfix-function-calling.traj", "bugfix-text-actions.traj"]


def chat_file(*messages):
    return json.dumps(messages).encode()


@pytest.fixture
def session():
    (recording,) = load(FIXTURES / "session.jsonl")
    return recording


def test_a_coding_session_is_one_step_a_model_call(session):
    kinds = [[kind_of(row.body).name for row in step.rows] for step in session.steps]
    assert kinds == [
        ["USER"],
        ["TOOL_RESULT", "TOOL_RESULT"],
        ["NOTICE", "USER"],
        ["USER"],
        ["TOOL_RESULT", "NOTICE"],
    ]
    assert [None if step.answer is None else len(step.answer) for step in session.steps] == [1, 1, 0, 1, None]


def test_its_blocks_times_models_and_usage_are_kept(session):
    first, failed, *_ = session.steps
    (image,) = [b for b in first.rows[0].body.content if isinstance(b, ImageBlock)]
    assert (image.mime_type, image.data) == ("image/png", "aWs=")
    answer = first.answer[0].body
    assert answer.content[0] == ReasoningBlock("Look at the log.", signature="c2ln")
    assert answer.create_time == "2026-03-01T08:00:02.000Z"
    assert first.usage == {
        "input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 4,
    }  # fmt: skip
    assert first.model == ModelRef("anthropic", "claude-a")
    assert failed.rows[1].body.is_error
    assert session.steps[3].model == ModelRef("anthropic", "claude-b")


def test_l1_an_aborted_answer_keeps_its_text_and_whole_calls(session):
    answer = session.steps[1].answer[0].body
    assert answer.stop_reason is StopReason.ABORTED
    assert [call.call_id for call in calls_of(answer)] == ["t3"]
    (warning,) = [w for w in session.warnings if w.code is WarningCode.PARTIAL_CALLS_DROPPED]
    assert "t4" in warning.message
    assert "line 7" in warning.message


def test_r4_an_aborted_answer_of_nothing_is_dropped_with_a_warning(session):
    assert session.steps[2].answer == ()
    assert session.steps[2].usage == {
        "input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0,
    }  # fmt: skip
    (warning,) = [w for w in session.warnings if w.code is WarningCode.MESSAGE_DROPPED]
    assert "line 10" in warning.message


def test_what_the_user_ran_is_a_notice(session):
    notice = session.steps[2].rows[0].body
    assert isinstance(notice, NoticeRow)
    assert notice.content[0].text == "$ cat valves.log\nvalve 3: stuck\n(exit code 1)\n(output truncated)"


def test_r3_a_repeated_id_answers_its_newest_call_and_an_orphan_is_kept(session):
    rows = session.steps[4].rows
    assert isinstance(rows[0].body, ToolResultRow)
    assert "of nobody" in str(rows[1].body.content)
    losses = [w.message for w in session.warnings if w.code is WarningCode.FORMAT_LOSS]
    assert len(losses) == 2
    assert any("compactions" in text for text in losses)
    assert any("kept as notices" in text for text in losses)


def test_a_call_id_used_twice_in_one_answer_is_renamed_with_its_result():
    calls = [{"id": "c", "type": "function", "function": {"name": n, "arguments": "{}"}} for n in ("a", "b")]
    results = [{"role": "tool", "tool_call_id": "c", "content": text} for text in ("of a", "of b")]
    given = chat_file({"role": "user", "content": "u"}, {"role": "assistant", "tool_calls": calls}, *results)
    (recording,) = load_bytes("twice", given)
    first, second = calls_of(recording.steps[0].answer[0].body)
    assert first.call_id != second.call_id
    answered = {row.body.call_id: row.body.content[0].text for row in recording.steps[1].rows}
    assert answered == {first.call_id: "of a", second.call_id: "of b"}
    assert [w.code for w in recording.warnings] == [WarningCode.CALL_ID_RENAMED]
    arranged(recording.rows)


def test_runs_are_recordings_of_their_own():
    traj = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "v"}]
    given = json.dumps([{"task_id": 3, "trial": 1, "traj": traj}, {"task_id": 4, "trial": 0, "traj": traj}]).encode()
    recordings = load_bytes("runs", given)
    assert [r.name for r in recordings] == ["runs-0-task-3-1", "runs-1-task-4-0"]
    assert [[len(s.rows), s.answer is None] for s in recordings[0].steps] == [[1, False], [1, True]]


def test_trajectories_pair_their_results_and_tell_observations_from_requests():
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    history = [
        {"role": "system", "content": "s", "agent": "main"},
        {"role": "user", "content": "watch me", "is_demo": True},
        {"role": "user", "content": "fix it"},
        {"role": "assistant", "content": "look", "action": "ls", "thought": "look", "tool_calls": [call]},
        {"role": "tool", "content": "a.py", "tool_call_ids": ["c1"]},
        {"role": "assistant", "content": "```\ncat a.py\n```", "action": "cat a.py"},
        {"role": "user", "content": "x = 1"},
    ]
    (recording,) = load_bytes("run", json.dumps({"history": history, "trajectory": [], "info": {}}).encode())
    kinds = [kind_of(row.body).name for row in recording.rows]
    assert kinds == ["SYSTEM", "INJECTED_CONTEXT", "USER", "ASSISTANT", "TOOL_RESULT", "ASSISTANT", "NOTICE"]
    assert not recording.warnings
    assert not any(row.body.extra for row in recording.rows)


@pytest.mark.parametrize("fmt", ["openai_chat", "openai_compatible", "anthropic_messages"])
def test_message_files_hold_the_rows_of_their_messages(fmt):
    for name, value in json.loads((FIXTURES / f"{fmt}.json").read_text()).items():
        (recording,) = load_bytes(name, json.dumps(value).encode())
        parse_as = Format.ANTHROPIC_MESSAGES if fmt == "anthropic_messages" else Format.OPENAI_CHAT
        parsed = formats.parse(parse_as, json.dumps(value).encode())
        assert Counter(kind_of(r.body) for r in recording.rows) == Counter(kind_of(r.body) for r in parsed.rows)


def test_lines_of_messages_are_one_conversation_and_lines_of_conversations_several():
    first, second = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
    lines = b"\n".join(json.dumps(m).encode() for m in (first, second))
    (recording,) = load_bytes("one", lines)
    assert len(recording.rows) == 2
    several = b"\n".join(json.dumps({"messages": [first, second]}).encode() for _ in range(3))
    assert [r.name for r in load_bytes("many", several)] == ["many-0", "many-1", "many-2"]


@pytest.mark.parametrize("data", [b"", b"not json", b"[]", b"{}", b'{"a": 1}\n{"b": 2}', b"[1, 2]", b'"text"'])
def test_files_of_no_known_shape_are_refused(data):
    with pytest.raises(FoldlineError) as caught:
        load_bytes("x", data)
    assert caught.value.reason is Reason.FORMAT_INVALID


def test_a_broken_line_is_named():
    with pytest.raises(FoldlineError) as caught:
        load_bytes("x", (FIXTURES / "session.jsonl").read_bytes() + b'{"type": "message"')
    assert caught.value.metadata["field"] == "line 17"


@pytest.mark.parametrize("file", RECORDED)
def test_real_recordings_render_validly_to_both_formats(file):
    if not (REAL / file).exists():
        pytest.skip(f"{file} is not here")
    for recording in load(REAL / file):
        arrangement = arranged(recording.rows)
        chat = from_json(formats.render(Format.OPENAI_CHAT, arrangement).json)
        anthropic = from_json(formats.render(Format.ANTHROPIC_MESSAGES, arrangement).json)
        assert openai_chat_faults(chat) == []
        assert anthropic_faults(anthropic) == []


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        (
            "coding-session.jsonl",
            {
                "messages": 990, "rows": 977, "steps": 485, "calls": 451, "results": 448, "reasoning": 49,
                "unanswered": 3, "dropped": 13, "cut": 3, "repeated": 0, "errors": 12, "notices": 3,
            },
        ),
        (
            "airline-runs.json",
            {
                "messages": 1700, "rows": 1700, "steps": 850, "calls": 361, "results": 361, "reasoning": 0,
                "unanswered": 0, "dropped": 0, "cut": 0, "repeated": 26, "errors": 0, "notices": 0,
            },
        ),
        (
            "bugfix-function-calling.traj",
            {
                "messages": 28, "rows": 28, "steps": 14, "calls": 13, "results": 13, "reasoning": 0,
                "unanswered": 0, "dropped": 0, "cut": 0, "repeated": 4, "errors": 0, "notices": 0,
            },
        ),
        (
            "bugfix-text-actions.traj",
            {
                "messages": 26, "rows": 26, "steps": 12, "calls": 0, "results": 0, "reasoning": 0,
                "unanswered": 0, "dropped": 0, "cut": 0, "repeated": 0, "errors": 0, "notices": 11,
            },
        ),
    ],
)  # fmt: skip
def test_every_oddity_of_the_real_recordings_is_kept_or_named(file, counts):
    """Messages are rows or warned of; calls have results, are unanswered, or are warned of as cut off."""
    if not (REAL / file).exists():
        pytest.skip(f"{file} is not here")
    found = Counter(dict.fromkeys(counts, 0))
    for recording in load(REAL / file):
        warned = Counter(w.code for w in recording.warnings)
        found["dropped"] += warned[WarningCode.MESSAGE_DROPPED]
        found["cut"] += warned[WarningCode.PARTIAL_CALLS_DROPPED]
        found["steps"] += len(recording.steps)
        found["rows"] += len(recording.rows)
        ids = Counter(call.call_id for row in recording.rows for call in calls_of(row.body))
        found["calls"] += ids.total()
        found["repeated"] += ids.total() - len(ids)
        for row in recording.rows:
            body = row.body
            found["results"] += isinstance(body, ToolResultRow)
            found["errors"] += isinstance(body, ToolResultRow) and body.is_error
            found["notices"] += isinstance(body, NoticeRow)
            if isinstance(body, AssistantRow):
                found["reasoning"] += sum(isinstance(b, ReasoningBlock) for b in body.content)
    found["unanswered"] = found["calls"] - found["results"]
    found["messages"] = found["rows"] + found["dropped"]
    assert found == counts


def test_a_demonstration_is_injected_context():
    if not (REAL / "bugfix-text-actions.traj").exists():
        pytest.skip("bugfix-text-actions.traj is not here")
    (recording,) = load(REAL / "bugfix-text-actions.traj")
    assert [kind_of(row.body) for row in recording.steps[0].rows] == [
        RowKind.SYSTEM, RowKind.INJECTED_CONTEXT, RowKind.USER,
    ]  # fmt: skip
    assert isinstance(recording.steps[0].rows[1].body, InjectedContextRow)
