"""§14: a list that its host keeps folds as the same list would here. What is staged: ``test_host_owned``."""

from __future__ import annotations

from typing import Any

import pytest
from foldline.v1 import compaction_pb2, row_pb2

from tests.decisions.script import Script, row
from tests.decisions.table import marks
from tests.integration.hosted import HostedHost
from tests.support.server import Client, refused

PLAIN: dict[str, Any] = {"auto_compact": False, "retention": {"turns": 0, "messages": 0}, "min_progress": 0.0}


def hosted(client: Client, name: str, words: str, request: int = 0) -> HostedHost:
    """The rows as the host's own; ``request`` is the number of the row that the open run r9 begins with."""
    host = HostedHost(client, name, **PLAIN)
    ids = host.add(*(row(word, n) for n, word in enumerate(words.split(), start=1)))
    if request:
        host.start, host.run_id = ids[request - 1], "r9"
    return host


def listing(host: HostedHost) -> str:
    names = {row_id: str(n) for n, row_id in enumerate(host.ids(), start=1)}
    answer = host.compact(manual=True)
    host.apply(answer)
    return " ".join(names.get(row_id, "K") for row_id in host.ids())


ALIKE = [
    # (rule, case, rows, number of the row that the open run begins with, script that does the same here)
    ("H3", "everything between runs", "S U A(c) R(c) A", 0, "S U A(c) R(c) A #"),
    ("H3", "units stay whole", "U A(c,d)! R(c) R(d) U A", 0, "U A(c,d)! R(c) R(d) U A #"),
    ("H1", "the open run's request stays", "U A U I U", 3, "U A U@r9 I@r9 U@r9 >r9 #"),
    ("H1", "its rounds fold after the rows before it", "U A U A(c) R(c) A", 3, "U A U@r9 >r9 A(c)@r9 R(c)@r9 A@r9 #"),
    ("H3", "superseded system rows fold along", "S(k,1) S(k,2) U A", 0, "S(k,1) S(k,2) U A #"),
    ("H3", "injected context goes with its user row", "U A I U A N", 0, "U A I U A N #"),
]


@pytest.mark.parametrize(("words", "request_row", "script"), marks(ALIKE))
def test_a_hosts_list_folds_as_one_kept_here(
    client: Client, name: str, words: str, request_row: int, script: str
) -> None:
    """H3: same planner, same checks, same place of the summary."""
    here = Script(client, f"{name}-here", **PLAIN).play(script)
    assert listing(hosted(client, name, words, request_row)) == here.listing()


def test_h3_the_record_names_what_was_discarded_and_nothing_is_published_before_the_commit(
    client: Client, name: str
) -> None:
    host = hosted(client, name, "U A U A")
    answer = host.compact(manual=True)
    assert list(answer.discarded_row_ids) == host.ids()
    assert answer.record.rows_summarized == 4
    assert host.found("consumer queue") == []
    host.apply(answer)
    host.commit(answer)
    assert len(host.found("consumer queue")) == 4
    assert host.verify().ok


SUMMARIES = [
    # (rule, case, what is changed of the summary that comes back, the reason it is refused with)
    ("H2", "an issued one is accepted", {}, ""),
    ("H2", "not with another digest", {"digest": "0" * 64}, "SUMMARY_ROW_REFUSED"),
]


@pytest.mark.parametrize(("changed", "reason"), marks(SUMMARIES))
def test_summaries_among_the_hosts_rows(client: Client, name: str, changed: dict[str, str], reason: str) -> None:
    host = hosted(client, name, "U A U A")
    answer = host.compact(manual=True)
    summary = host.apply(answer)
    host.commit(answer)
    for field, value in changed.items():
        setattr(dict(host.list)[summary].compaction_summary, field, value)
    host.add(row("U", 91), row("A", 92))
    if reason:
        assert refused(host.compact, manual=True).reason == reason
        return
    again = host.compact(manual=True)
    assert summary in again.discarded_row_ids, "F8: it folds by the next fold"
    assert again.record.scope == compaction_pb2.FOLD_SCOPE_WHOLE
    assert again.summary.WhichOneof("body") == "compaction_summary"
    assert isinstance(again.summary, row_pb2.Row)
