"""Real sessions through a real server: everything verifies, and every prepared request is valid for each format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from foldline.cli.play import Player
from foldline.domain.rows import Row
from foldline.formats.importers import Recording, Step, load
from foldline.server.codec.rows import wire_row
from foldline.v1 import compaction_service_pb2, model_pb2, row_pb2, session_pb2, session_service_pb2

from tests.support.server import running_server
from tests.validity import anthropic_faults, google_faults, openai_chat_faults, openai_responses_faults

DATA = Path(__file__).parents[3] / "shared" / "data"
FILES = ("coding-session.jsonl", "airline-runs.json", "bugfix-function-calling.traj", "bugfix-text-actions.traj")
MODEL = model_pb2.ModelRef(provider="openai", model="windowed")

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real inputs are not beside this checkout")

FAULTS: dict[row_pb2.Format.ValueType, Callable[..., list[str]]] = {
    row_pb2.FORMAT_OPENAI_CHAT: openai_chat_faults,
    row_pb2.FORMAT_OPENAI_RESPONSES: openai_responses_faults,
    row_pb2.FORMAT_ANTHROPIC_MESSAGES: anthropic_faults,
    row_pb2.FORMAT_GOOGLE_GENAI: google_faults,
}


class Host:
    """Checks what a host would send after every prepared request."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def check(self, player: Player, step: Step, response: compaction_service_pb2.PrepareRequestResponse) -> None:
        number = player.played.requests
        active = [r.offset for r in listed(player, session_pb2.ROW_VIEW_ACTIVE)]
        if player.replica != active:
            self.faults.append(f"{player.session_id} {number} replica: {player.replica[-5:]} is not {active[-5:]}")
        for fmt, faults in FAULTS.items():
            found = faults(json.loads(render(player, fmt)))
            self.faults += [f"{player.session_id} {number} {row_pb2.Format.Name(fmt)}: {fault}" for fault in found]


def render(player: Player, fmt: row_pb2.Format.ValueType) -> bytes:
    return player.sessions.RenderTranscript(
        session_service_pb2.RenderTranscriptRequest(session_id=player.session_id, format=fmt)
    ).rendered_json


def listed(player: Player, view: session_pb2.RowView.ValueType) -> list[row_pb2.Row]:
    rows: list[row_pb2.Row] = []
    token = ""
    while True:
        page = player.sessions.ListRows(
            session_service_pb2.ListRowsRequest(
                session_id=player.session_id, view=view, page_size=500, page_token=token
            )
        )
        rows += page.rows
        token = page.next_page_token
        if not token:
            return rows


def content_key(row: row_pb2.Row) -> str:
    """What a host handed in of a row: the body without what only the sidecar sets."""
    kind = row.WhichOneof("body")
    body = getattr(row, kind or "user")
    same = type(body)()
    same.CopyFrom(body)
    if kind == "tool_result":
        same.late = False
        same.call_offset = 0
    if kind == "assistant":
        same.ClearField("model")
    return f"{kind}:{same.SerializeToString(deterministic=True).hex()}"


@pytest.mark.parametrize("window", [8_000, 32_000])
@pytest.mark.parametrize("name", FILES)
def test_every_request_is_valid_and_no_row_is_missing(tmp_path: Path, name: str, window: int) -> None:
    catalog = tmp_path / "models.json"
    entry = {"context_window": window, "type": "openai", "encoding": "o200k_base"}
    catalog.write_text(json.dumps({MODEL.model: entry}))
    recordings = load(DATA / name)
    host = Host()
    with running_server(tmp_path, {"catalog": str(catalog)}) as server:
        for recording in recordings:
            player = Player(server.channel, recording.name, MODEL)
            player.create()
            player.play(recording, host.check)
            assert player.played.verify_ok, player.played.faults
            assert_nothing_is_lost(player, recording)
    assert not host.faults, f"{len(host.faults)} faults: {host.faults[:5]}"


def assert_nothing_is_lost(player: Player, recording: Recording) -> None:
    """Every row of the recording is in the archive, byte for byte, as often as it was handed in."""
    given = Counter(content_key(wire_row(Row(0, r.body, r.run_id, r.pinned))) for r in recording.rows)
    kept = Counter(
        content_key(r) for r in listed(player, session_pb2.ROW_VIEW_ARCHIVE) if not r.HasField("compaction_summary")
    )
    assert given == kept, f"missing {list(given - kept)[:2]}, more than given {list(kept - given)[:2]}"
