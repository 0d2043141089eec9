"""The contract's descriptors: what hosts and checks rely on by name, and the rules every field must state."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from enum import Enum

import foldline.v1
import pytest
from foldline.domain import enums, errors, folding, policy
from foldline.v1._third_party.buf.validate import validate_pb2
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    FileDescriptor,
    MethodDescriptor,
)

FILES: dict[str, FileDescriptor] = {
    module.name: importlib.import_module(f"foldline.v1.{module.name}").DESCRIPTOR
    for module in pkgutil.iter_modules(foldline.v1.__path__)
    if module.name.endswith("_pb2")
}
MESSAGES: dict[str, Descriptor] = {
    name: message for file in FILES.values() for name, message in file.message_types_by_name.items()
}
ENUMS: dict[str, EnumDescriptor] = {
    name: values for file in FILES.values() for name, values in file.enum_types_by_name.items()
}
METHODS: list[MethodDescriptor] = [
    method for file in FILES.values() for service in file.services_by_name.values() for method in service.methods
]

SERVICES = {
    "SessionService": """CreateSession GetSession ListSessions UpdateSession DeleteSession ForkSession
        AppendRows EditRows PinRows ListRows ReadRow ListRevisions RestoreRevision
        RenderTranscript VerifySession ExportSession ImportSession""",
    "CompactionService": """PrepareRequest AttachSession RecordAnswer FinishRun CheckPressure
        PlanCompaction CompactSession SaveCheckpoint ListCheckpoints GetCheckpoint
        CompactTranscript CommitProjection AbortProjection BoundResults""",
    "CuratorService": "Curate",
    "MemoryService": "SearchMemory GetMemory EnumerateScope DropScope",
    "ToolService": "ListAgentTools CallAgentTool",
    "EventService": "ListEvents WatchEvents",
    "EstimateService": "CountTokens ClassifyError NormalizeUsage",
    "AdminService": "GetServerInfo GetEffectiveConfig ListModels",
}
STREAMS = {  # (from the client, from the server)
    "AttachSession": (True, True),
    "Curate": (True, True),
    "ImportSession": (True, False),
    "ExportSession": (False, True),
    "CompactSession": (False, True),
    "WatchEvents": (False, True),
}
FIELDS = {
    "Row": """offset create_time run_id pinned extra system notice user injected_context assistant
        tool_result compaction_summary provider_compaction""",
    "SystemRow": "key version content",
    "NoticeRow": "kind content",
    "UserRow": "content",
    "InjectedContextRow": "content",
    "AssistantRow": "content model stop_reason derived_from",
    "ToolResultRow": "call_id content is_error interim late usage_mark",
    "CompactionSummaryRow": "text fold_id digest source",
    "ContentBlock": """text image video audio document structured reasoning tool_call server_tool
        transcript""",
    "TextBlock": "text",
    "ToolCallBlock": "call_id name arguments_json",
    "RowInput": "rows raw",
    "RawMessages": "format json",
    "ModelRef": "provider model",
    "ModelInfo": "context_window input_ceiling max_output body_cap_bytes encoding type prices",
    "CreateSessionRequest": "session_id model policy labels ownership",
    "AppendRowsRequest": "session_id request_id expected_revision input run_id",
    "AppendRowsResponse": "revision first_offset last_offset warnings",
    "PrepareRequestRequest": """session_id run_id request_id expected_revision supersede_open_run
        previous_answer append shape reply format known_revision override""",
    "RequestShape": """model tools_json tools_digest output_reserve_tokens body_bytes input_tokens
        overhead_bytes overhead_tokens""",
    "PrepareRequestResponse": """revision prepare_id action pressure_checked pressure_sent rows splices
        rendered_json bounded fold skip fold_pending stable_prefix_rows last_usage warnings""",
    "Splice": "position delete_count rows offsets",
    "Outcome": "prepare_id answer refusal finish",
    "Answer": "input response usage usage_json model partial",
    "ResponseBody": "response_json",
    "Refusal": "http_status raw_body kind",
    "RecordAnswerRequest": "session_id run_id request_id outcome",
    "PressureReport": "threshold_tokens signals parts estimator_name estimator_error",
    "Signal": "kind value limit source tripped class suppressed_by",
    "Breakdown": "system tools request rounds results pinned",
    "CompactionRecord": """fold_id trigger signals revision_before revision_after discarded retained
        tokens_before tokens_after bytes_before bytes_after summary_source bound model usage
        duration coverage digest summary_text""",
    "CompactSessionRequest": "session_id request_id instructions",
    "CompactSessionResponse": "progress record",
    "VerifySessionResponse": "ok rows_total rows_active rows_archived folds faults",
    "SearchMemoryRequest": "session_id query limit min_score filter max_tokens include_neighbors",
    "SearchMemoryResponse": "hits degraded scope_dropped",
    "MemoryHit": "text score offset byte_range role call_id",
}
RENAMED = {"ReadingSource": "Source", "Reason": "ErrorReason"}


def rules_of(field: FieldDescriptor) -> validate_pb2.FieldRules:
    return field.GetOptions().Extensions[validate_pb2.field]


def own_fields() -> Iterator[FieldDescriptor]:
    for message in MESSAGES.values():
        yield from message.fields


def map_entry(field: FieldDescriptor) -> Descriptor | None:
    entry = field.message_type
    return entry if entry is not None and entry.GetOptions().map_entry else None


def unbounded(rules: validate_pb2.FieldRules, field: FieldDescriptor) -> str:
    """What lacks a maximum in a scalar's rules, or nothing."""
    if field.type == FieldDescriptor.TYPE_STRING:
        text = rules.string
        return "" if any(text.HasField(name) for name in ("max_len", "max_bytes", "len", "len_bytes")) else "string"
    if field.type == FieldDescriptor.TYPE_BYTES:
        return "" if rules.bytes.HasField("max_len") or rules.bytes.HasField("len") else "bytes"
    return ""


def without_maximum(field: FieldDescriptor) -> str:
    rules = rules_of(field)
    if (entry := map_entry(field)) is not None:
        key, value = (entry.fields_by_name[name] for name in ("key", "value"))
        if not rules.map.HasField("max_pairs"):
            return "map"
        return unbounded(rules.map.keys, key) or unbounded(rules.map.values, value)
    if field.is_repeated:
        return unbounded(rules.repeated.items, field) if rules.repeated.HasField("max_items") else "repeated"
    return unbounded(rules, field)


def test_every_rpc_of_the_design_exists_and_no_other() -> None:
    found: dict[str, list[str]] = {}
    for method in METHODS:
        found.setdefault(method.containing_service.name, []).append(method.name)
    assert found == {service: names.split() for service, names in SERVICES.items()}


def test_streams_are_where_they_are_said_to_be() -> None:
    found = {m.name: (m.client_streaming, m.server_streaming) for m in METHODS}
    assert {name: kind for name, kind in found.items() if any(kind)} == STREAMS


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_fixed_field_names_exist(name: str) -> None:
    missing = set(FIELDS[name].split()) - set(MESSAGES[name].fields_by_name)
    assert not missing


def test_every_string_bytes_repeated_and_map_states_a_maximum() -> None:
    """W6."""
    assert [f"{f.full_name}: {what}" for f in own_fields() if (what := without_maximum(f))] == []


def test_every_enum_field_takes_known_values_only() -> None:
    loose = []
    for field in own_fields():
        if field.type == FieldDescriptor.TYPE_ENUM:
            rules = rules_of(field).repeated.items if field.is_repeated else rules_of(field)
            if not rules.enum.defined_only:
                loose.append(field.full_name)
    assert loose == []


def test_every_required_oneof_of_an_input_is_marked() -> None:
    marked = {
        oneof.full_name.removeprefix("foldline.v1.")
        for message in MESSAGES.values()
        for oneof in message.oneofs
        if oneof.GetOptions().Extensions[validate_pb2.oneof].required
    }
    assert {"Row.body", "ContentBlock.kind", "RowInput.kind", "CountTokensRequest.input"} <= marked


def test_unsigned_numbers_of_requests_fit_a_signed_store() -> None:
    wide = []
    for field in own_fields():
        owner = field.containing_type
        if field.type == FieldDescriptor.TYPE_UINT64 and owner is not None and owner.name.endswith("Request"):
            rules = rules_of(field).repeated.items if field.is_repeated else rules_of(field)
            if not 0 < rules.uint64.lte < 2**63:
                wide.append(field.full_name)
    assert wide == []


def test_lists_page() -> None:
    """W6: AIP-158 names and numbers."""
    for method in METHODS:
        if method.name.startswith("List") and method.name != "ListAgentTools":
            assert {"page_size", "page_token"} <= set(method.input_type.fields_by_name), method.name
            assert method.output_type.fields_by_number[1].is_repeated, method.name
            assert "next_page_token" in method.output_type.fields_by_name, method.name


def test_every_write_takes_a_request_id() -> None:
    """W2: what has side effects is idempotent by request_id; streams carry it in their messages."""
    reads = {m.name for m in METHODS if m.GetOptions().idempotency_level == m.GetOptions().NO_SIDE_EFFECTS}
    writes = {m.name: m.input_type for m in METHODS if m.name not in reads}
    without = {name for name, request in writes.items() if "request_id" not in request.fields_by_name}
    assert without == {"AttachSession", "Curate", "ImportSession"}
    assert "request_id" in MESSAGES["ImportHeader"].fields_by_name
    assert not {name for name in reads if re.match(r"Create|Update|Delete|Append|Edit|Save|Drop|Commit|Abort", name)}


def python_enums() -> dict[str, type[Enum]]:
    return {
        name: kind
        for module in (enums, errors, folding)
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, Enum) and kind.__module__ == module.__name__ and len(kind)
    }


@pytest.mark.parametrize("name", sorted(set(python_enums()) - {"RowKind"}))
def test_shared_vocabularies_are_equal(name: str) -> None:
    contract = ENUMS[RENAMED.get(name, name)]
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", contract.name).upper() + "_"
    assert contract.values[0].name == f"{prefix}UNSPECIFIED"
    assert {v.name.removeprefix(prefix) for v in contract.values[1:]} == {
        member.name for member in python_enums()[name]
    }


def test_row_kinds_are_the_bodies_of_a_row() -> None:
    bodies = {field.name.upper() for field in MESSAGES["Row"].oneofs_by_name["body"].fields}
    assert bodies == {kind.name for kind in enums.RowKind}


def knobs(message: Descriptor, prefix: str = "") -> Iterator[tuple[str, FieldDescriptor]]:
    for field in message.fields:
        if field.message_type is not None and field.message_type.name.endswith("Policy"):
            yield from knobs(field.message_type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field


def test_policy_holds_every_knob_in_order_and_each_may_be_unset() -> None:
    found = dict(knobs(MESSAGES["Policy"]))
    assert tuple(found) == policy.field_names()
    assert [name for name, field in found.items() if not field.has_presence] == []
