"""``foldline demo``: a long conversation goes through a sidecar, folds when it must, and what was folded is found."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import grpc

from foldline.cli.play import Played, Player
from foldline.config import Config
from foldline.demo import session as shipped
from foldline.domain.errors import FoldlineError, Reason
from foldline.formats.importers import Recording, Step, load
from foldline.v1 import (
    compaction_pb2,
    compaction_service_pb2,
    memory_pb2,
    model_pb2,
    pressure_pb2,
    row_pb2,
    session_pb2,
    session_service_pb2,
    warning_pb2,
)

MODEL = "foldline-demo"
OVER_WINDOW = warning_pb2.WARNING_CODE_FORECAST_OVER_WINDOW
SEARCHES = 3
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Query:
    """A question to memory; found when a hit holds ``marker`` or stands at ``offset``."""

    text: str
    marker: str = ""
    offset: int = 0

    def answered_by(self, hit: memory_pb2.MemoryHit) -> bool:
        return self.marker in hit.text if self.marker else hit.offset == self.offset


WORDS = """\
  A fold puts old rows into one summary row: whole before a new request; inside a run stage 1 takes what stands before
  it, stage 2 the run's completed rounds, combined both. "a >= b" is what was measured and the limit it reached, in
  tokens: history is what was said, forecast the request as it would be sent, against the window with room for the
  answer. Coverage is the share of paths, names and numbers of the folded rows that the summary still holds.
"""


@click.command(short_help="Plays a long session: shows folds, searches, verifies.")
@click.option("--file", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Play this file.")
@click.option(
    "--window",
    default=16_000,
    show_default=True,
    type=click.IntRange(100, 100_000_000),
    help="Context window of the model, in tokens.",
)
@click.option("--seed", default=7, show_default=True, help="Seed of the session that ships with the package.")
@click.option("--json", "as_json", is_flag=True, help="Progress to stderr; the last line of stdout is the result.")
def command(file: Path | None, window: int, seed: int, as_json: bool) -> None:
    """Plays a long session against a small window: shows folds, searches what was folded, verifies.

    Without --file it plays the debugging session that ships with the package. A file may hold a coding-agent session,
    customer-service runs, a trajectory, or chat messages (JSON or JSONL).
    """

    def say(text: str) -> None:
        click.echo(text, err=as_json)

    recordings = _recordings(file) if file else [shipped.recording(seed)]
    say(WORDS)
    played: list[Played] = []
    with _server(window) as channel:
        for recording in recordings:
            say(f"{recording.name}: {len(recording.rows)} rows in {len(recording.steps)} model calls, window {window}")
            for warning in recording.warnings:
                say(f"  {warning.code}: {warning.message}")
            played.append(_play(channel, recording, shipped_questions=file is None, say=say))
    if as_json:
        click.echo(json.dumps({"sessions": [_result(p) for p in played]}))
    if not all(p.verify_ok for p in played):
        raise SystemExit(1)


def _recordings(file: Path) -> list[Recording]:
    try:
        return load(file)
    except FoldlineError as error:
        raise FoldlineError(Reason.FORMAT_INVALID, f"{file}: {error.message}") from None
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from None


@contextmanager
def _server(window: int) -> Iterator[grpc.Channel]:
    """A server of our own on a temporary store, reached over its Unix socket."""
    from foldline.server import app, logs

    with tempfile.TemporaryDirectory(prefix="foldline-demo-") as folder:
        catalog = Path(folder) / "models.json"
        entry = {"context_window": window, "type": "openai", "encoding": "o200k_base"}
        catalog.write_text(json.dumps({MODEL: entry}), "utf-8")
        logs.configure("error")
        flags = {"data": folder, "listen": "", "catalog": str(catalog)}
        server = app.build(Config.load(env={}, flags=flags))
        server.start()
        try:
            server.ready()
            with grpc.insecure_channel(server.addresses[0]) as channel:
                yield channel
        finally:
            server.stop(grace=1.0)


def _play(channel: grpc.Channel, recording: Recording, *, shipped_questions: bool, say: Say) -> Played:
    player = Player(channel, recording.name, model_pb2.ModelRef(provider="openai", model=MODEL))
    player.create()

    def on_prepared(_: Player, step: Step, response: compaction_service_pb2.PrepareRequestResponse) -> None:
        if response.HasField("fold"):
            _tell_fold(player, response, say)
        if response.action == compaction_pb2.ACTION_TOO_LARGE:
            sent = response.pressure_sent
            say(f"  request {player.played.requests}: TOO_LARGE, {sent.forecast_tokens} of {sent.input_budget_tokens}")
        player.played.over_window += any(w.code == OVER_WINDOW for w in response.warnings)

    player.play(recording, on_prepared)
    for query in _questions(player, shipped_questions):
        hit = player.search(query.text, query.answered_by)
        say(f"  memory: {query.text!r}")
        if hit is None:
            say("    not found")
        else:
            say(f"    row {hit.offset}, score {hit.score:.2f}: {_short(hit.text, query.marker)}")
    played = player.played
    if played.over_window:
        say(
            f"  {played.over_window} requests were forecast over the window after all was folded that may fold, and "
            "sent: an estimate refuses no request (FORECAST_OVER_WINDOW)"
        )
    state = "ok" if played.verify_ok else f"{len(played.faults)} faults: {played.faults[:3]}"
    say(
        f"  {played.requests} requests, {played.folds} folds of {played.summaries} summaries; "
        f"{played.rows_total} rows, {played.rows_active} active, {played.rows_archived} folded away; verified: {state}"
    )
    return played


def _tell_fold(player: Player, response: compaction_service_pb2.PrepareRequestResponse, say: Say) -> None:
    fold, checked = response.fold, response.pressure_checked
    tripped = [s for s in checked.signals if s.tripped and s.kind in fold.signals]
    why = ", ".join(_signal(s) for s in tripped)
    scope = compaction_pb2.FoldScope.Name(fold.scope).removeprefix("FOLD_SCOPE_").lower().replace("_", " ")
    rows = sum(r.last - r.first + 1 for r in fold.discarded)
    say(f"  request {player.played.requests} folds ({scope}): {why}")
    say(
        f"    {rows} rows ({_ranges(fold.discarded)}) into a summary of {len(fold.summary_text)} characters; "
        f"{fold.tokens_before} -> {fold.tokens_after} tokens, {fold.memory_entries} memory entries, "
        f"coverage {fold.coverage.with_appendix:.2f}"
    )


def _signal(signal: pressure_pb2.Signal) -> str:
    kind = pressure_pb2.SignalKind.Name(signal.kind).removeprefix("SIGNAL_KIND_").lower().replace("_", " ")
    return f"{kind} {signal.value} >= {signal.limit}" if signal.HasField("value") else kind


def _ranges(ranges: Sequence[row_pb2.OffsetRange]) -> str:
    shown = [str(r.first) if r.first == r.last else f"{r.first}-{r.last}" for r in ranges[:4]]
    return ", ".join(shown) + (" …" if len(ranges) > 4 else "")


def _questions(player: Player, shipped_questions: bool) -> list[Query]:
    """The shipped session's questions; for a file, openings of rows that were folded, user rows if there are any."""
    if shipped_questions:
        return [Query(q.query, q.marker) for q in shipped.questions()]
    spoken: list[Query] = []
    other: list[Query] = []
    token = ""
    while True:
        page = player.sessions.ListRows(
            session_service_pb2.ListRowsRequest(
                session_id=player.session_id, view=session_pb2.ROW_VIEW_ARCHIVE, page_size=500, page_token=token
            )
        )
        for row in page.rows:
            body = getattr(row, row.WhichOneof("body") or "user")
            text = " ".join(b.text.text for b in getattr(body, "content", ()) if b.HasField("text")).strip()
            if row.archived and len(text) > 20 and not row.HasField("system"):
                query = Query(" ".join(text.split()[:12]), offset=row.offset)
                (spoken if row.HasField("user") else other).append(query)
        token = page.next_page_token
        if not token:
            break
    found = spoken if len(spoken) >= SEARCHES else [*spoken, *other]
    step = max(1, len(found) // SEARCHES)
    return found[::step][:SEARCHES]


def _short(text: str, marker: str) -> str:
    start = max(0, text.find(marker) - 60) if marker else 0
    return "…" * bool(start) + " ".join(text[start : start + 160].split()) + "…" * (len(text) > start + 160)


def _result(played: Played) -> dict[str, object]:
    return {
        "session_id": played.session_id,
        "requests": played.requests,
        "folds": played.folds,
        "summaries": played.summaries,
        "too_large": played.too_large,
        "forecast_over_window": played.over_window,
        "rows_total": played.rows_total,
        "rows_active": played.rows_active,
        "rows_archived": played.rows_archived,
        "verify": {"ok": played.verify_ok, "faults": played.faults},
        "searches": [{"query": query, "found": found} for query, found in played.searches],
    }
