"""§7: what a commit holds, and that VerifySession finds whatever is not as it was committed (V8, V9, V10)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from foldline.v1 import session_service_pb2

from tests.decisions.script import Script
from tests.decisions.table import marks
from tests.integration.test_rewrites import Slow, compacted
from tests.support.server import Client, refused, running_server

PLAIN: dict[str, Any] = {"auto_compact": False, "retention": {"turns": 0, "messages": 0}, "min_progress": 0.0}

BODY = "UPDATE archive_row SET body = CAST(replace(body, 'queue', 'query') AS BLOB) WHERE offset = {}"
FOLD = "UPDATE rewrite SET {} WHERE kind = 'FOLD'"
TAMPERED = [
    # (rule, case, what is done to the store, the fault's rule)
    ("V10", "nothing", "SELECT 1", ""),
    ("V10", "the body of a folded row", BODY.format(2), "V7"),
    ("V10", "the body of an active row", BODY.format(7), "V10"),
    ("R1", "a folded row is gone", "DELETE FROM archive_row WHERE offset = 3", "R1"),
    ("V8", "memory of a folded row is hidden", "UPDATE memory_entry SET visible = 0 WHERE offset = 2", "V8"),
    ("M2", "memory of an active row is shown", "UPDATE memory_entry SET offset = 7 WHERE offset = 2", "M2"),
    ("V10", "the list after the fold", FOLD.format("active = (SELECT active FROM rewrite WHERE revision = 0)"), "V10"),
    ("V10", "the digest of a revision", FOLD.format("digest = replace(digest, substr(digest, 1, 4), '0000')"), "V10"),
]


@pytest.mark.parametrize(("statement", "rule"), marks(TAMPERED))
def test_verify_session_finds_what_was_changed_behind_its_back(tmp_path: Path, statement: str, rule: str) -> None:
    """V10: every row accounted for, digests chained, sources of summaries present, memory matching."""
    with running_server(tmp_path) as client:
        Script(client, "s", **PLAIN).play("U A U A # U A")
    with sqlite3.connect(tmp_path / "data" / "foldline.db") as db:
        db.execute(statement)
    db.close()
    with running_server(tmp_path) as client:
        verified = client.session.VerifySession(session_service_pb2.VerifySessionRequest(session_id="s"))
    assert verified.ok is (rule == "")
    if rule:
        assert rule in {f.rule for f in verified.faults}, list(verified.faults)


def test_v8_every_discarded_row_that_is_indexed_is_written_with_the_fold(client: Client, name: str) -> None:
    """V8: counted in the record, found at once, and not before."""
    host = Script(client, name, **PLAIN).play("S N I U A(c) R(c) A")
    assert not host.search("consumer queue broker").hits
    record = host.compact()
    found = {h.offset for h in host.search("consumer queue broker", limit=20).hits}
    assert found == {4, 5, 6, 7}, "user, assistant and result rows"
    assert record.memory_entries >= 4


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Client, Slow]]:
    source = Slow()
    with running_server(tmp_path, summarizer=source) as client:
        yield client, source
        source.go_on.set()


def pin(host: Script, *offsets: int) -> None:
    host.client.session.PinRows(session_service_pb2.PinRowsRequest(session_id=host.id, offsets=offsets, pinned=True))


MEANWHILE: list[tuple[str, str, Callable[[Script], object], str]] = [
    # (rule, case, what happens while the summary is written, list after; empty where the candidate is dropped)
    ("V9", "nothing", lambda host: None, "K"),
    ("V9", "appends follow at the end", lambda host: host.play("U I U"), "K 7 8 9"),
    ("V9", "a pin takes its unit out of the fold", lambda host: pin(host, 3), "K 2 3"),
    ("V9", "a result that no request carried keeps its call", lambda host: host.play("R(d)"), "K 4 7"),
    ("V9", "nothing is left to fold", lambda host: pin(host, 1, 2, 4, 5, 6), ""),
]


@pytest.mark.parametrize(("meanwhile", "listing"), marks(MEANWHILE))
def test_what_comes_while_a_summary_is_written(
    slow: tuple[Client, Slow], meanwhile: Callable[[Script], object], listing: str
) -> None:
    client, source = slow
    host = Script(client, "s", **PLAIN).play("U A(c) R(c) A(d) U A")
    with ThreadPoolExecutor(1) as pool:
        fold = pool.submit(lambda: compacted(host) if listing else refused(compacted, host))
        assert source.started.wait(10)
        meanwhile(host)
        source.go_on.set()
        outcome: Any = fold.result()
    if listing:
        assert host.listing() == listing
    else:
        assert outcome.reason == "REWRITE_REJECTED"
        assert host.listing() == "1 2 3 4 5 6"
    assert host.verify().ok
