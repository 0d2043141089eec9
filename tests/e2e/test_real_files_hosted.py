"""A real session whose host keeps the transcript: each list can be sent, nothing is lost, all verifies (H1-H3)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from foldline.domain.enums import RowKind
from foldline.domain.rows import NewRow, Row, kind_of
from foldline.formats.importers import load
from foldline.server.codec.rows import wire_row
from foldline.v1 import row_pb2

from tests.e2e.test_real_files import DATA, content_key
from tests.integration.hosted import HostedHost
from tests.support.server import running_server

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real inputs are not beside this checkout")


def wire(row: NewRow) -> row_pb2.Row:
    return wire_row(Row(0, row.body, "", row.pinned))


@pytest.mark.parametrize(("window", "folds"), [(8_000, 20), (32_000, 3)])
def test_a_host_folds_a_real_session(tmp_path: Path, window: int, folds: int) -> None:
    catalog = tmp_path / "models.json"
    entry = {"context_window": window, "type": "openai", "encoding": "o200k_base"}
    catalog.write_text(json.dumps({"small": entry}))
    (recording,) = load(DATA / "coding-session.jsonl")
    made, faults = 0, list[str]()
    with running_server(tmp_path, {"catalog": str(catalog)}) as client:
        host = HostedHost(client, "hosted")
        for step in recording.steps:
            ids = host.add(*map(wire, step.rows))
            asked = [i for i, r in zip(ids, step.rows, strict=True) if kind_of(r.body) == RowKind.USER]
            host.start = asked[0] if asked else host.start
            answer = host.compact()
            if answer.projection_id:
                made += 1
                host.apply(answer)
                host.commit(answer)
                faults += host.faults()
            host.add(*map(wire, step.answer or ()))
        verified = host.verify()
        assert verified.ok, verified.faults
        assert made >= folds
        assert verified.folds == made
        assert all(ends == ["completed"] for ends in host.ends().values())
        kept = [row for _, row in host.list] + list(host.archive())
        given = Counter(content_key(wire(r)) for r in recording.rows)
        assert given == Counter(content_key(r) for r in kept if not r.HasField("compaction_summary"))
    assert not faults, f"{len(faults)} faults: {faults[:5]}"
