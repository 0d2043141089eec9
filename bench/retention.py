"""Retention: the share of the identifiers of folded rows that are still in front of the agent after a fold.

Every real recording, and the demo session, is folded as an agent would meet it: in pieces of ``PIECE`` tokens, each
with the summary of the piece before. Counted are the identifiers that matter in the newest piece (S9, the constraints
a user stated among them), and those of every piece so far, which a summary of summaries cannot hold for ever. The
peer is the head of the same rows, cut to the same number of tokens. Only the seconds a summary takes are timed.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foldline._core import count_tokens
from foldline.demo import session as demo
from foldline.domain.enums import SummarySource
from foldline.domain.folding import SummaryFailed, SummaryRequest
from foldline.domain.policy import DEFAULT_REDACT, Summary
from foldline.domain.rows import CompactionSummaryRow, Row, SystemRow
from foldline.formats.importers import load
from foldline.summarize.constraints import constraints_of
from foldline.summarize.coverage import missing
from foldline.summarize.extractive import ExtractiveSummarizer
from foldline.summarize.identifiers import Identifier, identifiers_of
from foldline.summarize.reading import read_rows
from foldline.summarize.redact import Redactor
from foldline.summarize.text import source_text

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
FILES = ("coding-session.jsonl", "bugfix-function-calling.traj", "bugfix-text-actions.traj", "airline-runs.json")
BUDGETS = (256, 1024, 4096)
PIECE = 40_000
DEFAULTS = Summary()


@dataclass
class Tally:
    """Shares in [0, 1], one a fold."""

    folds: int = 0
    skipped: int = 0
    identifiers: int = 0
    prose: list[float] = field(default_factory=list)
    appendix: list[float] = field(default_factory=list)
    all_so_far: list[float] = field(default_factory=list)
    head: list[float] = field(default_factory=list)

    def means(self) -> dict[str, float | int]:
        shares = {n: getattr(self, n) for n in ("prose", "appendix", "all_so_far", "head")}
        means = {n: round(statistics.mean(v), 3) for n, v in shares.items() if v}
        return {"folds": self.folds, "too_short": self.skipped, "identifiers": self.identifiers, **means}


def count(text: str) -> int:
    return count_tokens(text, "o200k_base")


def recordings() -> Iterator[tuple[str, list[Row]]]:
    """Name and rows of every recording; a file of many runs gives many."""
    yield "demo", _rows(demo.recording().rows)
    for name in FILES:
        if (DATA / name).exists():
            for recording in load(DATA / name):
                yield name, _rows(recording.rows)


def _rows(new: Sequence[Any]) -> list[Row]:
    return [Row(offset, r.body) for offset, r in enumerate(new, 1) if not isinstance(r.body, SystemRow)]


def pieces(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows in runs of about ``PIECE`` tokens, as folds would take them."""
    piece: list[Row] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += count(source_text(row))
        if size >= PIECE:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def measure(rows: Sequence[Row], budget: int, tally: Tally, seconds: list[float]) -> None:
    mask = Redactor(DEFAULT_REDACT).mask
    summarizer = ExtractiveSummarizer(count)
    earlier: tuple[CompactionSummaryRow, ...] = ()
    met: dict[str, Identifier] = {}
    for piece in pieces(rows):
        request = SummaryRequest(
            tuple(piece), earlier, budget, DEFAULTS.appendix_tokens, DEFAULTS.coverage_floor, DEFAULT_REDACT
        )
        started = time.perf_counter()
        try:
            summary = summarizer.summarize(request)
        except SummaryFailed:
            tally.skipped += 1
            continue
        seconds.append(time.perf_counter() - started)
        reading = read_rows(piece, mask)
        wanted = identifiers_of(reading, [(c.offset, c.text) for c in constraints_of(reading.requests)])
        met.update({i.text: i for i in wanted})
        earlier = (CompactionSummaryRow(summary.text, "f", SummarySource.EXTRACTIVE, durable=summary.durable),)
        tally.folds += 1
        tally.identifiers += len(wanted)
        if wanted:
            tally.prose.append(summary.coverage.summary)
            tally.appendix.append(summary.coverage.with_appendix)
            tally.all_so_far.append(_held(list(met.values()), summary.text))
            tally.head.append(_held(wanted, _head(piece, count(summary.text))))


def _held(wanted: Sequence[Identifier], text: str) -> float:
    return 1 - len(missing(wanted, text)) / len(wanted)


def _head(piece: Sequence[Row], tokens: int) -> str:
    """The peer: as much of the beginning of the rows as the summary took."""
    taken: list[str] = []
    for row in piece:
        text = source_text(row)
        size = count(text)
        taken.append(text if size <= tokens else text[: len(text) * tokens // size])
        tokens -= size
        if tokens <= 0:
            break
    return "\n".join(taken)


def run(rounds: int = 1) -> dict[str, Any]:
    """Mean shares a file and budget, over folds, and seconds a summary: (median, longest)."""
    found: dict[str, dict[int, Tally]] = {}
    seconds: list[float] = []
    for number in range(max(1, rounds)):
        for name, rows in recordings():
            for budget in BUDGETS:
                tally = found.setdefault(name, {}).setdefault(budget, Tally()) if number == 0 else Tally()
                measure(rows, budget, tally, seconds)
    return {
        "id": "retention",
        "rounds": rounds,
        "piece_tokens": PIECE,
        "shares": {name: {str(b): t.means() for b, t in budgets.items()} for name, budgets in found.items()},
        "seconds": {"median": round(statistics.median(seconds), 3), "longest": round(max(seconds), 3)},
    }


if __name__ == "__main__":
    json.dump(run(), sys.stdout, indent=2)
    print()
