"""Looks at a session whose transcript its host keeps, and holds what is there to the model (H3, V8, V10, M2, §13)."""

from __future__ import annotations

from typing import Any

from foldline.v1 import memory_service_pb2, session_pb2, session_service_pb2

from tests.model.kept import Kept
from tests.model.rendered import texts
from tests.model.state import require, sent_form


def settle(host: Any, kept: Kept, *, thorough: bool) -> None:
    """After every step: events, counts, and that nothing is shown which was not committed."""
    log, look = kept.log, host.look
    if kept.staged is not None and host.backend.clock() >= kept.staged.expires:
        kept.ended[kept.staged.answer.projection_id] = "PROJECTION_EXPIRED"
        kept.staged = None
    look.pending(log)
    open_folds = log.started.keys() - log.ended
    staged = {kept.staged.answer.record.fold_id} if kept.staged is not None else set()
    require(staged <= open_folds, "H3", f"{staged} is staged, its log says that it ended")
    # One whose time has come ends at the next call that sees it.
    late = {f for f in open_folds if kept.ended.get(f"pr-{f}") == "PROJECTION_EXPIRED"}
    require(open_folds <= staged | late, "§13", f"folds {open_folds - staged - late} started and did not end")
    got = look.get(log)
    require(got.totals.folds == log.folds, "H3", f"{got.totals.folds} folds, committed {log.folds}")
    require(
        got.totals.rows_total == len(kept.archive), "H3", f"{got.totals.rows_total} rows, {len(kept.archive)} folded"
    )
    if thorough:
        archive(host, kept)
        replayed(host, kept)
        found(host, kept)


def archive(host: Any, kept: Kept) -> None:
    rows = host.look.listed(kept.log, session_pb2.ROW_VIEW_ARCHIVE)
    require([r.offset for r in rows] == sorted(kept.archive), "H3", f"{[r.offset for r in rows]} are in the archive")
    for row in rows:
        wanted = kept.archive[row.offset]
        same = texts(row) == texts(wanted) if kept.fmt else sent_form(row) == sent_form(wanted)
        require(same, "V2", f"row {row.offset} is {row}, the host's was {wanted}")


def replayed(host: Any, kept: Kept) -> None:
    verified = host.client.session.VerifySession(session_service_pb2.VerifySessionRequest(session_id=kept.log.id))
    require(verified.ok, "V10", list(verified.faults))
    require(verified.folds == kept.log.folds, "H3", f"{verified.folds} folds, committed {kept.log.folds}")


def found(host: Any, kept: Kept) -> None:
    """M2, V8: a search shows what was committed and what the last list that was sent does not hold."""
    folded = sorted(set(kept.archive) - set(kept.summaries.values()))
    if not folded:
        return
    query = texts(kept.archive[host.rng.choice(folded)])[:200]
    if not query.strip():
        return
    request = memory_service_pb2.SearchMemoryRequest(session_id=kept.log.id, query=query, limit=20)
    hits = [h.offset for h in host.client.memory.SearchMemory(request).hits]
    require(set(hits) <= set(folded), "V8", f"hits of rows {set(hits) - set(folded)}, which are not committed")
