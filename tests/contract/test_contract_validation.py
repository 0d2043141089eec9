"""The validation rules of the contract, run by the engine that the server uses."""

from __future__ import annotations

import re
from typing import Any

import protovalidate
import pytest
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.policy import check_layer
from foldline.v1 import (
    compaction_service_pb2 as compaction,
)
from foldline.v1 import (
    curator_service_pb2 as curator,
)
from foldline.v1 import (
    estimate_service_pb2 as estimate,
)
from foldline.v1 import (
    event_service_pb2 as event,
)
from foldline.v1 import (
    memory_service_pb2 as memory,
)
from foldline.v1 import (
    policy_pb2,
    row_pb2,
)
from foldline.v1 import (
    session_service_pb2 as session,
)
from foldline.v1 import (
    tool_service_pb2 as tool,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

MODEL = {"provider": "openai", "model": "gpt-4o"}
ROWS = {"rows": {"rows": [{"user": {"content": [{"text": {"text": "hello"}}]}}]}}
RAW = {"raw": {"format": "FORMAT_OPENAI_CHAT", "json": "W10="}}
ANSWER = {"prepare_id": "p-1", "answer": {"input": RAW}}
PREPARE = {
    "session_id": "s",
    "run_id": "run-1",
    "request_id": "p1",
    "reply": "REPLY_MODE_WHOLE",
    "format": "FORMAT_OPENAI_CHAT",
    "append": RAW,
    "previous_answer": ANSWER,
    "shape": {"model": MODEL, "output_reserve_tokens": 2000},
    "override": {"auto_compact_threshold": 24000},
}
MAX_OFFSET = 2**63 - 1

GOOD: list[tuple[type[Message], dict[str, Any]]] = [
    (session.CreateSessionRequest, {}),
    (session.CreateSessionRequest, {"session_id": "a/b:c@d", "model": MODEL, "labels": {"team": ""}}),
    (session.UpdateSessionRequest, {"session_id": "s", "update_mask": "policy,labels"}),
    (session.AppendRowsRequest, {"session_id": "s", "input": ROWS, "expected_revision": 0}),
    (session.AppendRowsRequest, {"session_id": "s", "input": RAW, "run_id": "run 1".replace(" ", "#")}),
    (session.EditRowsRequest, {"session_id": "s", "first_offset": 1, "last_offset": MAX_OFFSET}),
    (session.PinRowsRequest, {"session_id": "s", "offsets": [3, 1], "pinned": True}),
    (session.ListRowsRequest, {"session_id": "s", "view": "ROW_VIEW_ACTIVE", "revision": 0, "page_size": 0}),
    (session.ReadRowRequest, {"session_id": "s", "offset": 1, "range": {"start": 4, "end": 4}}),
    (session.RenderTranscriptRequest, {"session_id": "s", "format": "FORMAT_OPENAI_CHAT"}),
    (compaction.PrepareRequestRequest, {"session_id": "s", "run_id": "r"}),
    (compaction.PrepareRequestRequest, PREPARE),
    (
        compaction.RecordAnswerRequest,
        {"session_id": "s", "outcome": {**ANSWER, "finish": "RUN_OUTCOME_COMPLETED"}},
    ),
    (
        compaction.RecordAnswerRequest,
        {"session_id": "s", "outcome": {"prepare_id": "p", "refusal": {"http_status": 413}}},
    ),
    (compaction.FinishRunRequest, {"session_id": "s", "run_id": "r", "outcome": "RUN_OUTCOME_FAILED"}),
    (compaction.CheckPressureRequest, {"session_id": "s", "shape": {"tools_digest": "0" * 64}}),
    (compaction.CompactSessionRequest, {"session_id": "s"}),
    (compaction.AttachSessionRequest, {"sequence": 1, "open": {"session_id": "s"}}),
    (compaction.BoundResultsRequest, {"results": [{"call_id": "c", "text": ""}], "limit_bytes": 0}),
    (memory.SearchMemoryRequest, {"session_id": "s", "query": "q", "limit": 1, "min_score": 0.0}),
    (memory.SearchMemoryRequest, {"session_id": "s", "query": "q", "limit": 20}),
    (memory.SearchMemoryRequest, {"session_id": "s", "query": ""}),
    (estimate.CountTokensRequest, {"model": MODEL, "text": ""}),
    (event.WatchEventsRequest, {"session_id": "s", "after": 7, "kinds": ["EVENT_KIND_WARNING"]}),
    (tool.ListAgentToolsRequest, {"session_id": "s", "format": "FORMAT_ANTHROPIC_MESSAGES"}),
    (curator.CurateRequest, {"sequence": 1, "register": {"role": "CURATOR_ROLE_CURATOR"}}),
]
BAD: list[tuple[type[Message], dict[str, Any], str]] = [
    (session.CreateSessionRequest, {"session_id": "has space"}, "session_id"),
    (session.CreateSessionRequest, {"session_id": "-starts-with-a-dash"}, "session_id"),
    (session.CreateSessionRequest, {"session_id": "a" * 129}, "session_id"),
    (session.CreateSessionRequest, {"session_id": "newline\n"}, "session_id"),
    (session.CreateSessionRequest, {"model": {"provider": "openai"}}, "model.model"),
    (session.CreateSessionRequest, {"labels": {"": "x"}}, "labels"),
    (session.CreateSessionRequest, {"ownership": 9}, "ownership"),
    (session.CreateSessionRequest, {"request_id": "naïve"}, "request_id"),
    (session.GetSessionRequest, {}, "session_id"),
    (session.ListSessionsRequest, {"page_size": -1}, "page_size"),
    (session.UpdateSessionRequest, {"session_id": "s", "update_mask": ",".join(["policy"] * 129)}, ""),
    (session.AppendRowsRequest, {"session_id": "s"}, "input"),
    (session.AppendRowsRequest, {"session_id": "s", "input": {}}, "input.kind"),
    (session.AppendRowsRequest, {"session_id": "s", "input": {"raw": {"json": "W10="}}}, "input.raw.format"),
    (session.AppendRowsRequest, {"session_id": "s", "input": {"raw": {"format": 1}}}, "input.raw.json"),
    (
        session.AppendRowsRequest,
        {"session_id": "s", "input": {"rows": {"rows": [{}]}}},
        "input.rows.rows.body",
    ),
    (
        session.AppendRowsRequest,
        {"session_id": "s", "input": {"rows": {"rows": [{"user": {"content": []}}]}}},
        "input.rows.rows.user.content",
    ),
    (
        session.AppendRowsRequest,
        {"session_id": "s", "input": {"rows": {"rows": [{"tool_result": {"call_id": ""}}]}}},
        "input.rows.rows.tool_result.call_id",
    ),
    (
        session.AppendRowsRequest,
        {"session_id": "s", "input": ROWS, "expected_revision": 2**63},
        "expected_revision",
    ),
    (session.EditRowsRequest, {"session_id": "s", "first_offset": 0, "last_offset": 1}, "first_offset"),
    (session.PinRowsRequest, {"session_id": "s", "offsets": []}, "offsets"),
    (session.PinRowsRequest, {"session_id": "s", "offsets": [1, 1]}, "offsets"),
    (session.ListRowsRequest, {"session_id": "s", "view": "ROW_VIEW_ARCHIVE", "revision": 3}, ""),
    (session.ReadRowRequest, {"session_id": "s", "offset": 1, "range": {"start": 5, "end": 4}}, "range"),
    (session.RenderTranscriptRequest, {"session_id": "s"}, "format"),
    (session.ImportSessionRequest, {}, "part"),
    (compaction.PrepareRequestRequest, {"session_id": "s"}, "run_id"),
    (compaction.PrepareRequestRequest, {**PREPARE, "previous_answer": {}}, "previous_answer.prepare_id"),
    (compaction.PrepareRequestRequest, {**PREPARE, "reply": 17}, "reply"),
    (
        compaction.PrepareRequestRequest,
        {**PREPARE, "shape": {"output_reserve_tokens": -1}},
        "shape.output_reserve_tokens",
    ),
    (
        compaction.PrepareRequestRequest,
        {**PREPARE, "shape": {"tools_digest": "F" * 64}},
        "shape.tools_digest",
    ),
    (
        compaction.PrepareRequestRequest,
        {**PREPARE, "override": {"min_progress": 1.0}},
        "override.min_progress",
    ),
    (compaction.RecordAnswerRequest, {"session_id": "s"}, "outcome"),
    (
        compaction.RecordAnswerRequest,
        {"session_id": "s", "outcome": {"prepare_id": "p", "refusal": {"http_status": 600}}},
        "outcome.refusal.http_status",
    ),
    (compaction.FinishRunRequest, {"session_id": "s", "run_id": "r"}, "outcome"),
    (compaction.CompactSessionRequest, {"session_id": "s", "instructions": "é" * 8193}, "instructions"),
    (compaction.AttachSessionRequest, {"sequence": 0, "open": {"session_id": "s"}}, "sequence"),
    (
        compaction.SaveCheckpointRequest,
        {"session_id": "s", "description": "d", "trim_count": 0},
        "trim_count",
    ),
    (memory.SearchMemoryRequest, {"session_id": "s", "query": "q", "limit": 0}, "limit"),
    (memory.SearchMemoryRequest, {"session_id": "s", "query": "q", "limit": 21}, "limit"),
    (memory.SearchMemoryRequest, {"session_id": "s", "query": "q", "min_score": "NaN"}, "min_score"),
    (memory.EnumerateScopeRequest, {"session_id": "s", "limit": 0}, "limit"),
    (memory.EnumerateScopeRequest, {"session_id": "s", "filter": {"kinds": [0]}}, "filter.kinds"),
    (estimate.CountTokensRequest, {"text": "x"}, "model"),
    (estimate.CountTokensRequest, {"model": MODEL}, "input"),
    (curator.CurateRequest, {"sequence": 1, "register": {}}, "register.role"),
]


def violated(message: Message) -> set[str]:
    """Dotted paths of the fields that break a rule; empty for a rule of the message itself."""
    return {
        ".".join(e.field_name for e in v.proto.field.elements) if v.proto.field else ""
        for v in protovalidate.collect_violations(message)
    }


@pytest.mark.parametrize(("kind", "fields"), GOOD, ids=lambda value: getattr(value, "__name__", ""))
def test_good_requests_pass(kind: type[Message], fields: dict[str, Any]) -> None:
    assert violated(ParseDict(fields, kind())) == set()


@pytest.mark.parametrize(("kind", "fields", "path"), BAD, ids=lambda v: getattr(v, "__name__", v if v is str else ""))
def test_bad_requests_name_the_field(kind: type[Message], fields: dict[str, Any], path: str) -> None:
    assert violated(ParseDict(fields, kind())) == {path}


def test_texts_are_bounded_in_bytes_not_characters() -> None:
    """W6."""
    limit = 16 * 1024 * 1024
    assert violated(row_pb2.TextBlock(text="a" * limit)) == set()
    assert violated(row_pb2.TextBlock(text="é" * (limit // 2) + "a")) == {"text"}


@given(st.text(st.characters(max_codepoint=0x2FF), max_size=140))
@settings(max_examples=50, deadline=None)
def test_session_ids_follow_their_pattern(text: str) -> None:
    allowed = len(text) <= 128 and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:@/+=~-]*", text) is not None
    assert (violated(session.GetSessionRequest(session_id=text)) == set()) == allowed


NUMBERS = {
    "int": [
        "auto_compact_threshold",
        "body_cap_bytes",
        "output_reserve_tokens",
        "min_boundaries_between",
        "max_paid_folds_per_hour",
        "max_tokens_per_day",
        "retention.turns",
        "retention.messages",
        "summary.retries",
        "summary.max_tokens",
        "summary.appendix_tokens",
        "summary.ledger_tokens",
        "summary.mechanical_tokens",
        "bounding.min_bytes",
        "memory.chunk_tokens",
        "memory.max_answer_tokens",
    ],
    "float": [
        "threshold_fraction",
        "target_fraction",
        "byte_fraction",
        "min_progress",
        "max_cost_per_day",
        "summary.coverage_floor",
        "background.fraction",
        "estimate.factor_min",
        "estimate.factor_max",
    ],
    "duration": ["cooldown", "run_ttl", "fold_wait", "summary.timeout", "memory.projection_ttl"],
}
EDGES = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 5.0, 6.0])


def policy_with(name: str, kind: str, value: float) -> policy_pb2.Policy:
    layer = policy_pb2.Policy()
    *path, leaf = name.split(".")
    target: Any = layer
    for part in path:
        target = getattr(target, part)
    if kind == "duration":
        getattr(target, leaf).FromMilliseconds(round(value * 1000))
    else:
        setattr(target, leaf, int(value) if kind == "int" else value)
    return layer


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NUMBERS.items() for name in names])
@given(value=EDGES | st.floats(-10, 10, width=16))
@settings(max_examples=25, deadline=None)
def test_policy_ranges_are_those_of_the_domain(kind: str, name: str, value: float) -> None:
    """Contract and configuration file refuse the same values."""
    if kind == "int":
        value = int(value)
    elif kind == "duration":
        value = round(value * 1000) / 1000
    try:
        check_layer({name: value})
        expected = set()
    except FoldlineError as error:
        assert error.reason is Reason.FIELD_VALIDATION
        expected = {name}
    assert violated(policy_with(name, kind, value)) == expected


def test_factor_bounds_must_not_cross() -> None:
    crossed = policy_pb2.Policy(estimate=policy_pb2.EstimatePolicy(factor_min=2.0, factor_max=1.0))
    assert violated(crossed) == {"estimate"}


def test_an_empty_list_of_redactions_differs_from_none() -> None:
    """S4: an unset ``summary.redact`` inherits, an empty one masks nothing."""
    assert not policy_pb2.SummaryPolicy().HasField("redact")
    assert policy_pb2.SummaryPolicy(redact=policy_pb2.RedactPatterns()).HasField("redact")
