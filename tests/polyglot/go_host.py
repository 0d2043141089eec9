"""The example host in Go: built once, run against a server, and what it says compared with what the server holds."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foldline.v1 import row_pb2, session_pb2, session_service_pb2
from google.protobuf import json_format

from tests.support.server import Client

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "examples" / "go"


def build(folder: Path) -> Path:
    """The program, built from the checkout."""
    program = folder / "loop"
    made = subprocess.run(
        ["go", "build", "-o", str(program), "./cmd/loop"], cwd=MODULE, capture_output=True, text=True, timeout=170
    )
    assert made.returncode == 0, made.stderr
    return program


@dataclass(frozen=True)
class Ran:
    """What a run printed and wrote. ``appended`` are all rows the host handed in, ``replica`` the list it holds."""

    report: dict[str, Any]
    steps: tuple[str, ...]
    appended: tuple[row_pb2.Row, ...]
    replica: tuple[row_pb2.Row, ...]


def run(
    program: Path,
    folder: Path,
    target: str,
    *flags: str,
    on_step: Callable[[subprocess.Popen[str], str], None] = lambda process, line: None,
) -> Ran:
    """Plays a session; ``on_step`` is told each line of progress as it comes."""
    dump = folder / "dump.json"
    process = subprocess.Popen(
        [str(program), "--target", target, "--dump", str(dump), *flags],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        steps = []
        try:
            for line in process.stderr:
                steps.append(line.strip())
                on_step(process, line.strip())
            said = process.stdout.read()
        except BaseException:
            process.kill()
            raise
    report = json.loads(said.splitlines()[-1])
    assert process.returncode == 0, (report, steps[-3:])
    written = json.loads(dump.read_text())
    appended, replica = (
        tuple(json_format.ParseDict(row, row_pb2.Row()) for row in written[part] or ())
        for part in ("appended", "replica")
    )
    return Ran(report, tuple(steps), appended, replica)


def authored(row: row_pb2.Row, *, offset: bool) -> bytes:
    """What the host authored of a row, with or without its offset; what the sidecar notes on it left out."""
    own = row_pb2.Row()
    own.CopyFrom(row)
    own.archived = False
    if not offset:
        own.offset = 0
    if own.HasField("tool_result"):
        own.tool_result.call_offset, own.tool_result.late, own.tool_result.usage_mark = 0, False, ""
    return own.SerializeToString(deterministic=True)


def rows(client: Client, session_id: str, view: session_pb2.RowView, revision: int | None = None) -> list[row_pb2.Row]:
    found: list[row_pb2.Row] = []
    token = ""
    while True:
        page = client.session.ListRows(
            session_service_pb2.ListRowsRequest(
                session_id=session_id, view=view, revision=revision, page_size=1000, page_token=token
            )
        )
        found += page.rows
        token = page.next_page_token
        if not token:
            return found


def check_nothing_lost(client: Client, ran: Ran) -> None:
    """The session verifies, its archive is what the host appended, once and in order, and both hold the same list."""
    session_id = ran.report["session_id"]
    verified = client.session.VerifySession(session_service_pb2.VerifySessionRequest(session_id=session_id))
    assert verified.ok, verified.faults
    archive = rows(client, session_id, session_pb2.ROW_VIEW_ARCHIVE)
    handed_in = [r for r in archive if not r.HasField("compaction_summary")]
    assert [authored(r, offset=False) for r in handed_in] == [authored(r, offset=False) for r in ran.appended]
    assert verified.rows_total == len(archive) == len(ran.appended) + verified.folds
    active = rows(client, session_id, session_pb2.ROW_VIEW_ACTIVE, ran.report["revision"])
    assert [authored(r, offset=True) for r in active] == [authored(r, offset=True) for r in ran.replica]
