"""The Python that the documents show runs as it stands, in their order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from foldline.v1 import compaction_pb2, row_pb2

from tests.integration.host import Host
from tests.support.requests import assistant, user
from tests.support.server import running_server, started

ROOT = Path(__file__).parents[2]


def snippets(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text("utf-8"), re.DOTALL)


def test_a_host_and_its_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """K1, K2: what the example in the README begins goes on in the document of checkpoints."""
    names: dict[str, Any] = {}
    with started(tmp_path) as server:
        server.ready()
        for snippet in (snippets("README.md")[0], *snippets("docs/checkpoints.md")):
            exec(snippet.replace("127.0.0.1:7420", server.addresses[0]), names)
        names["channel"].close()
    said = capsys.readouterr().out
    assert "SKIP_REASON_NOTHING_TO_FOLD\n['all parts are read', 'parts 0 to 2 are not it']" in said
    assert names["trimmed"].trimmed_calls == 3
    assert "1 tool calls were removed from view" in said


def test_f12_a_package_that_folds(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(snippets("docs/curators.md")[0], names)
    with running_server(tmp_path, compactor=names["KeepsQuestions"]()) as client:
        host = Host(client, "s")
        host.append(
            *(m for n in range(9) for m in (user(f"Why does step {n} fail? " * 9), assistant("It waits. " * 9)))
        )
        record = host.compact()
        assert record.summary_source == row_pb2.SUMMARY_SOURCE_COMPACTOR
        assert record.trigger == compaction_pb2.TRIGGER_MANUAL
        assert "memory_search finds them" in record.summary_text
        assert host.verify().ok
