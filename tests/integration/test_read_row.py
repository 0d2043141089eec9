"""ReadRow over gRPC: any archived row, whole or by a range of its text (M6)."""

from __future__ import annotations

from typing import Any

import pytest
from foldline.v1 import row_pb2, session_service_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.host import Host
from tests.support.server import Client, refused

TEXT = "größer als 🧑‍💻 漢字"


def block(**fields: Any) -> row_pb2.ContentBlock:
    return row_pb2.ContentBlock(**fields)


def text(value: str) -> row_pb2.ContentBlock:
    return block(text=row_pb2.TextBlock(text=value))


def user(*blocks: row_pb2.ContentBlock) -> row_pb2.Row:
    return row_pb2.Row(user=row_pb2.UserRow(content=blocks))


def ask(name: str, offset: int, start: int | None = None, end: int = 0) -> session_service_pb2.ReadRowRequest:
    request = session_service_pb2.ReadRowRequest(session_id=name, offset=offset)
    if start is not None:
        request.range.start, request.range.end = start, end
    return request


def part(client: Client, name: str, start: int, end: int, offset: int = 1) -> tuple[str, int, int]:
    answer = client.session.ReadRow(ask(name, offset, start, end))
    assert not answer.HasField("row")
    return answer.text, answer.range.start, answer.range.end


def whole_text(client: Client, name: str, offset: int) -> str:
    size = client.session.ReadRow(ask(name, offset)).text_bytes
    found, start, end = part(client, name, 0, size, offset)
    assert (start, end) == (0, size) == (0, len(found.encode()))
    return found


def test_m6_a_whole_row_comes_as_it_was_appended_and_without_its_text_again(client: Client, name: str) -> None:
    host = Host(client, name)
    host.rows(user(text(TEXT)))
    answer = client.session.ReadRow(ask(name, 1))
    assert (answer.row.user.content[0].text.text, answer.row.offset, answer.row.archived) == (TEXT, 1, False)
    assert (answer.text, answer.HasField("range"), answer.text_bytes) == ("", False, len(TEXT.encode()))


def test_m6_a_range_that_cuts_characters_is_moved_inward_and_says_so(client: Client, name: str) -> None:
    Host(client, name).rows(user(text("aé漢🎉z")))  # Characters at bytes 0, 1, 3, 6 and 10.
    expected = {
        (0, 11): ("aé漢🎉z", 0, 11), (0, 2): ("a", 0, 1), (2, 6): ("漢", 3, 6), (2, 9): ("漢", 3, 6),
        (1, 10): ("é漢🎉", 1, 10), (7, 11): ("z", 10, 11), (4, 5): ("", 5, 5), (7, 10): ("", 10, 10),
    }  # fmt: skip
    assert {asked: part(client, name, *asked) for asked in expected} == expected


def test_m6_a_range_ends_with_the_text_and_none_begins_behind_it(client: Client, name: str) -> None:
    Host(client, name).rows(user(text("0123456789")))
    assert part(client, name, 4, 1 << 40) == ("456789", 4, 10)
    assert part(client, name, 10, 10) == ("", 10, 10)
    assert part(client, name, 10, 99) == ("", 10, 10)
    assert part(client, name, 3, 3) == ("", 3, 3)
    found = refused(client.session.ReadRow, ask(name, 1, 11, 99))
    assert (found.reason, found.metadata["field"], found.metadata["range"]) == ("FIELD_VALIDATION", "range", "0-10")
    assert refused(client.session.ReadRow, ask(name, 1, 5, 4)).reason == "FIELD_VALIDATION"
    for offset in (2, 1 << 40):
        found = refused(client.session.ReadRow, ask(name, offset))
        assert (found.reason, found.metadata["field"], found.metadata["range"]) == ("FIELD_VALIDATION", "offset", "1-1")


KINDS = {
    "system": (row_pb2.Row(system=row_pb2.SystemRow(content=[text(TEXT)])), TEXT),
    "notice": (row_pb2.Row(notice=row_pb2.NoticeRow(content=[text(TEXT)])), TEXT),
    "injected context": (row_pb2.Row(injected_context=row_pb2.InjectedContextRow(content=[text(TEXT)])), TEXT),
    "user": (
        user(
            text(TEXT), text("  \n"), block(structured=row_pb2.StructuredBlock(json='{"a":1}')),
            block(image=row_pb2.ImageBlock(mime_type="image/png", data=bytes(9))),
            block(document=row_pb2.DocumentBlock(mime_type="application/pdf", title="plan", data=b"x")),
        ),
        f'{TEXT}\n\n{{"a":1}}\n\n[image image/png]\n\n[document plan application/pdf]',
    ),
    "media alone": (user(block(video=row_pb2.VideoBlock(url="https://example.com/v"))), "[video]"),
    "assistant": (
        row_pb2.Row(
            assistant=row_pb2.AssistantRow(
                content=[
                    block(reasoning=row_pb2.ReasoningBlock(text="secret", signature=b"s")), text(TEXT),
                    block(tool_call=row_pb2.ToolCallBlock(call_id="c1", name="ls", arguments_json='{"path":"/"}')),
                ]
            )
        ),
        f'{TEXT}\n\nls {{"path":"/"}}',
    ),
    "transcript": (
        row_pb2.Row(
            assistant=row_pb2.AssistantRow(
                content=[block(transcript=row_pb2.TranscriptBlock(text=TEXT, source=row_pb2.TRANSCRIPT_SOURCE_SPOKEN))]
            )
        ),
        TEXT,
    ),
    "reasoning alone": (
        row_pb2.Row(assistant=row_pb2.AssistantRow(content=[block(reasoning=row_pb2.ReasoningBlock(text="secret"))])),
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_m6_every_kind_of_row_has_its_text(client: Client, name: str, kind: str) -> None:
    row, expected = KINDS[kind]
    Host(client, name).rows(row)
    assert whole_text(client, name, 1) == expected
    assert client.session.ReadRow(ask(name, 1)).row.WhichOneof("body") == row.WhichOneof("body")


def test_m6_results_and_summaries_are_read_alike_also_when_they_are_folded(client: Client, name: str) -> None:
    host = Host(client, name)
    call = block(tool_call=row_pb2.ToolCallBlock(call_id="c1", name="ls", arguments_json="{}"))
    result = row_pb2.ToolResultRow(call_id="c1", content=[text(f"{TEXT} {'line ' * 400}"), text("more")])
    host.rows(
        user(text("list them " * 200)), row_pb2.Row(assistant=row_pb2.AssistantRow(content=[call])),
        row_pb2.Row(tool_result=result), row_pb2.Row(assistant=row_pb2.AssistantRow(content=[text("done " * 200)])),
        *(user(text(f"and then {n}? " * 40)) for n in range(12)),
    )  # fmt: skip
    before = whole_text(client, name, 3)
    assert before == f"{TEXT} {'line ' * 400}\n\nmore"
    record = host.compact()
    assert whole_text(client, name, 3) == before
    assert client.session.ReadRow(ask(name, 3)).row.archived
    assert whole_text(client, name, record.summary_offset) == record.summary_text


def test_m6_a_row_near_the_largest_message_is_read_in_parts(client: Client, name: str) -> None:
    """W5: as much as a request may carry; its text comes by ranges."""
    long = "漢🎉é\n" * 1_600_000
    Host(client, name).rows(user(text(long)))
    size = len(long.encode())
    assert 15 << 20 < size < 16 << 20
    raw, at, parts = long.encode(), 0, list[str]()
    while at < size:
        found, start, end = part(client, name, at, at + 5_000_000)
        assert start == at
        assert raw[start:end].decode() == found
        parts.append(found)
        at = end
    assert "".join(parts) == long


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.text(min_size=1, max_size=40).filter(str.strip), start=st.integers(0, 60), length=st.integers(0, 60))
def test_m6_a_range_gives_exactly_the_characters_wholly_inside(
    client: Client, value: str, start: int, length: int
) -> None:
    name = f"range-{abs(hash((value, start, length)))}"
    if name not in _made:
        _made.add(name)
        Host(client, name).rows(user(text(value)))
    size = len(value.encode())
    if start > size:
        assert refused(client.session.ReadRow, ask(name, 1, start, start + length)).reason == "FIELD_VALIDATION"
        return
    ends = [0]
    for character in value:
        ends.append(ends[-1] + len(character.encode()))
    inside = [c for c, a, b in zip(value, ends, ends[1:], strict=False) if a >= start and b <= start + length]
    found, first, last = part(client, name, start, start + length)
    assert found == "".join(inside)
    assert value.encode()[first:last].decode() == found
    assert start <= first <= last <= start + length


_made: set[str] = set()
