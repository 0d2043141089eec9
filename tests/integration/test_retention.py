"""R1 with a floor: what mattered in folded rows is in the summary, or found by a search for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from foldline.domain.rows import Row

from bench import r1_retention, retention
from tests.support.server import running_server

FLOOR = 0.95


def recording(name: str) -> list[Row]:
    found = next((rows for file, rows in retention.recordings() if file == name), None)
    if found is None:
        pytest.skip(f"{name} is not there")
    return found


@pytest.mark.parametrize("name", ["demo", "bugfix-function-calling.traj", "bugfix-text-actions.traj"])
def test_s8_s9_what_an_extractive_fold_leaves_in_reach(tmp_path: Path, name: str) -> None:
    catalog = tmp_path / "models.json"
    catalog.write_text('{"bench": {"context_window": 1000000, "encoding": "o200k_base"}}')
    with running_server(tmp_path, {"catalog": str(catalog)}) as client:
        kept = r1_retention.measure(r1_retention.Host(client.channel, name, "extractive"), recording(name))
    assert kept.identifiers >= 10
    assert kept.reached >= FLOOR * kept.identifiers, kept.shares()
    assert kept.summary >= 0.6 * kept.identifiers, "the coverage floor with its appendix"
