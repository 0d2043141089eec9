"""G17: the estimate against a provider's own counts over one real session, whole and by model.

The session is replayed row by row through ``pressure``, ``cadence`` and ``factor`` as a host would, with nothing known
of system rows and tools, and with the estimator that is used where no vocabulary is embedded. At each request the
projection (P2) is compared with what the provider then counted, after the first twenty; the growth is the part of it
that was not counted before. A compaction of the recording starts anew from its summary and the rows it kept; calls of
an aborted answer were never sent. The peers run over the same requests: bytes by four, and another vendor's vocabulary
with and without a learned factor.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foldline._core import measure_rows
from foldline.domain.enums import ModelType, SignalKind
from foldline.domain.models import Factor, ModelInfo
from foldline.domain.policy import Policy
from foldline.domain.rows import (
    AssistantRow,
    ContentBlock,
    ImageBlock,
    ModelRef,
    ReasoningBlock,
    RowBody,
    TextBlock,
    ToolCallBlock,
    ToolResultRow,
    UserRow,
    encode_body,
)
from foldline.domain.session import Cadence, Prepared
from foldline.engine import cadence, factor, readings
from foldline.engine.limits import limits
from foldline.engine.pressure import Measurement, measure
from foldline.engine.usage import normalize

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "coding-session.jsonl"
GOALS = {"projection": 0.002, "growth": 0.10}
WARM_UP = 20
MODEL = ModelRef("anthropic", "claude-opus-4-5")
INFO = ModelInfo(context_window=200_000, type=ModelType.ANTHROPIC)
POLICY = Policy()


@dataclass(frozen=True)
class Step:
    """A line of the recording: rows that follow, or, where ``compacts``, that are all there is from here.

    ``usage`` is in the provider's own fields; ``aborted`` is an answer that was cut off.
    """

    rows: tuple[RowBody, ...]
    usage: dict[str, int] | None = None
    compacts: bool = False
    aborted: bool = False
    model: ModelRef = MODEL


@dataclass(frozen=True)
class Reading:
    projected: int
    counted: int
    before: int
    model: ModelRef = MODEL


def steps(path: Path = DATA) -> list[Step]:
    found: list[Step] = []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if entry["type"] == "compaction":
            kept = [row for step in found[entry["firstKeptEntryIndex"] :] for row in step.rows]
            found.append(Step((UserRow((TextBlock(entry["summary"]),)), *kept), compacts=True))
        else:
            found.append(_step(entry["message"]) if entry["type"] == "message" else Step(()))
    return found


def _step(message: dict[str, Any]) -> Step:
    if message["role"] == "bashExecution":
        return Step((UserRow((TextBlock(f"$ {message['command']}\n{message['output']}"),)),))
    content = tuple(_block(part) for part in message["content"])
    if message["role"] == "toolResult":
        return Step((ToolResultRow(message["toolCallId"], content),))
    if message["role"] == "user":
        return Step((UserRow(content),))
    usage = message["usage"]
    counts = {
        "input_tokens": usage["input"], "cache_read_input_tokens": usage["cacheRead"],
        "cache_creation_input_tokens": usage["cacheWrite"], "output_tokens": usage["output"],
    }  # fmt: skip
    aborted = message["stopReason"] in ("aborted", "error")
    sent = tuple(b for b in content if not (aborted and isinstance(b, ToolCallBlock)))
    model = ModelRef(message["provider"], message["model"])
    return Step((AssistantRow(sent, model),) if sent else (), counts, aborted=aborted, model=model)


def _block(part: dict[str, Any]) -> ContentBlock:
    if part["type"] == "thinking":
        return ReasoningBlock(text=part["thinking"], signature=part.get("thinkingSignature") or "")
    if part["type"] == "toolCall":
        return ToolCallBlock(part["id"], part["name"], json.dumps(part["arguments"]))
    if part["type"] == "image":
        return ImageBlock(mime_type=part.get("mimeType", ""), data=part.get("data", ""))
    return TextBlock(part["text"])


def product(session: list[Step], learned: dict[ModelRef, Factor] | None = None) -> Iterator[Reading]:
    """Readings of the engine's own projection; ``learned`` takes the factor of each model."""
    bounds = limits(POLICY, INFO)
    factors = {} if learned is None else learned
    record = Cadence()
    tokens = size = revision = 0
    for step in session:
        sizes = measure_rows([encode_body(row) for row in step.rows], None)
        raw, row_bytes = sum(s[0] for s in sizes), sum(s[1] for s in sizes)
        if step.compacts:
            record, tokens, size = cadence.edited(record), 0, 0
        if step.usage is not None:
            model = step.model
            known = factors.setdefault(model, Factor(model))
            boundary, record = record.boundaries, cadence.count_boundary(record)
            usage = normalize(INFO.type, step.usage)
            report = measure(Measurement(model, factor.within(known, POLICY), tokens, size), record, bounds)
            projection = next(s for s in report.signals if s.kind == SignalKind.PROJECTION)
            if projection.value is not None and not projection.suppressed_by and record.anchor and usage.input_tokens:
                yield Reading(projection.value, usage.input_tokens, record.anchor.input_tokens, model)
            prepared = Prepared(
                prepare_id="", run_id="", revision=revision, boundary=boundary, rewrites=0, rows=0,
                covered_tokens=tokens, request_tokens=tokens, request_bytes=size, bounded=False, model=model,
                window=INFO.context_window,
            )  # fmt: skip
            record, verdict = readings.answered(
                record, prepared, usage, revisions_only_appends=True, estimate=report.forecast_tokens,
                answer_tokens=0 if step.aborted else raw,
            )  # fmt: skip
            if verdict.learn and verdict.input_tokens:
                factors[model] = factor.learn(known, tokens, verdict.input_tokens)
        tokens, size, revision = tokens + raw, size + row_bytes, revision + 1


def peer(session: list[Step], count: Callable[[bytes], int], learns: bool) -> Iterator[Reading]:
    """The usual way: the last count and an estimate of everything since, answers included."""
    learned, total, anchor, covered = Factor(MODEL), 0, 0, 0
    for step in session:
        if step.compacts:
            total = anchor = 0
        if step.usage is not None:
            counted = normalize(INFO.type, step.usage).input_tokens or 0
            if anchor and counted:
                yield Reading(anchor + factor.apply(learned, total - covered), counted, anchor)
            if counted:
                anchor, covered = counted, total
                learned = factor.learn(learned, total, counted) if learns else learned
        total += sum(count(encode_body(row)) for row in step.rows)


def _vendor(body: bytes) -> int:
    return measure_rows([body], "o200k_base")[0][0]


def _quarter(body: bytes) -> int:
    return -(-len(body) // 4)


def errors(readings: list[Reading]) -> dict[str, float]:
    """Mean relative errors of the projection and of the growth, and of all growth together."""
    kept = [r for r in readings if r.counted > r.before]
    missed = [abs(r.projected - r.counted) for r in kept]
    grown = [r.counted - r.before for r in kept]
    return {
        "readings": len(kept),
        "projection": statistics.mean(m / r.counted for m, r in zip(missed, kept, strict=True)),
        "growth": statistics.mean(m / g for m, g in zip(missed, grown, strict=True)),
        "growth_median": statistics.median(m / g for m, g in zip(missed, grown, strict=True)),
        "growth_total": sum(missed) / sum(grown),
    }


def by_model(readings: list[Reading], learned: dict[ModelRef, Factor]) -> dict[str, dict[str, float | None]]:
    """The same for each model, with its learned factor and the mean error that reports name beside it (4.5)."""
    found: dict[str, dict[str, float | None]] = {}
    for model, known in learned.items():
        own = [r for r in readings if r.model == model]
        part: dict[str, float | None] = {**errors(own)} if any(r.counted > r.before for r in own) else {}
        found[f"{model.provider}/{model.model}"] = {**part, "factor": known.value, "estimator_error": known.error}
    return found


def run(rounds: int = 1) -> dict[str, Any]:
    """Errors of the product and its peers; nothing here is timed, so every round gives the same."""
    session = steps()
    learned: dict[ModelRef, Factor] = {}
    own = list(product(session, learned))[WARM_UP:]
    found = {"product": errors(own)}
    for name, count, learns in (
        ("o200k, learned factor", _vendor, True), ("o200k", _vendor, False), ("bytes / 4", _quarter, False),
    ):  # fmt: skip
        found[name] = errors(list(peer(session, count, learns))[WARM_UP:])
    reached = {name: found["product"][name] <= goal for name, goal in GOALS.items()}
    return {
        "id": "G17", "rounds": rounds, "goals": GOALS, "reached": reached, "errors": found,
        "models": by_model(own, learned),
    }  # fmt: skip


if __name__ == "__main__":
    json.dump(run(), sys.stdout, indent=2)
    print()
