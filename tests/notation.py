"""Transcripts of facts in one line, for decision tables: ``"S U A(c1,c2)@r1 R(c1)@r1 U@r1"``.

A word is a kind, its calls in brackets, its run behind ``@``, flags, and tokens behind ``=`` (100 by default):

    S system, N notice, U user, I injected context, A assistant, R result, K summary (of the run in brackets), X native
    ! pinned   ~ late   ? interim   ^ paused   > resumes   - superseded

Offsets are 1, 2, 3, ... in list order. A result answers the newest call of its id before it.
"""

from __future__ import annotations

import re

from foldline.domain.enums import RowKind
from foldline.domain.folding import RowFacts, Snapshot
from foldline.domain.session import OpenRun

_KINDS = {
    "S": RowKind.SYSTEM,
    "N": RowKind.NOTICE,
    "U": RowKind.USER,
    "I": RowKind.INJECTED_CONTEXT,
    "A": RowKind.ASSISTANT,
    "R": RowKind.TOOL_RESULT,
    "K": RowKind.COMPACTION_SUMMARY,
    "X": RowKind.PROVIDER_COMPACTION,
}
WORD = re.compile(r"([SNUIARKX])(?:\(([^)]*)\))?(?:@(\w+))?([!~?^>-]*)(?:=(\d+))?$")


def facts(words: str) -> tuple[RowFacts, ...]:
    rows: list[RowFacts] = []
    made: dict[str, int] = {}
    for offset, word in enumerate(words.split(), start=1):
        match = WORD.match(word)
        assert match, word
        letter, inner, run, flags, tokens = match.groups()
        calls = tuple(inner.split(",")) if inner else ()
        kind = _KINDS[letter]
        rows.append(
            RowFacts(
                offset=offset,
                kind=kind,
                tokens=int(tokens or 100),
                bytes=4 * int(tokens or 100),
                run_id=run or "",
                pinned="!" in flags,
                call_ids=calls if letter == "A" else (),
                call_id=calls[0] if letter == "R" else "",
                call_offset=made.get(calls[0]) if letter == "R" else None,
                late="~" in flags,
                interim="?" in flags,
                paused="^" in flags,
                resumes=">" in flags,
                superseded="-" in flags,
                summary_of_run=inner or "" if letter == "K" else "",
                indexable=kind in (RowKind.USER, RowKind.ASSISTANT, RowKind.TOOL_RESULT),
                digest=str(offset).encode(),
            )
        )
        if letter == "A":
            made.update(dict.fromkeys(calls, offset))
    return tuple(rows)


def snapshot(
    words: str,
    *,
    run: str = "",
    request: tuple[int, ...] = (),
    continues: str = "",
    carried: int | None = None,
    prepared: int | None = None,
    factor: float = 1.0,
) -> Snapshot:
    """A snapshot of ``words``; everything is carried and prepared unless said otherwise."""
    rows = facts(words)
    opened = None
    if run:
        first = request[-1] + 1 if request else len(rows) + 1
        opened = OpenRun(run, 0, first, 0.0, request=request, continues=continues)
    last = len(rows)
    return Snapshot(
        revision=1,
        rows=rows,
        open_run=opened,
        carried_through=last if carried is None else carried,
        prepared_through=last if prepared is None else prepared,
        factor=factor,
    )
