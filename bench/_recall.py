"""What G10 asks: dialogues with questions whose evidence is known, and a coding session with questions of our own."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from foldline.domain.rows import AssistantRow, Row, TextBlock, UserRow
from foldline.formats.importers import load

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
LOCOMO, CODING = DATA / "locomo10.json", DATA / "coding-session.jsonl"
QUESTIONS = Path(__file__).with_name("questions.json")
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
CUTS = (5, 10, 20)
MOST_HITS = max(CUTS)


@dataclass(frozen=True)
class Question:
    """``evidence``: offsets of the rows that hold the answer."""

    text: str
    kind: str
    evidence: frozenset[int]


@dataclass(frozen=True)
class Talk:
    """Rows of a session and what is asked of it."""

    name: str
    rows: tuple[Row, ...]
    questions: tuple[Question, ...]


Search = Callable[[Talk, str], Sequence[int]]
"""Offsets of rows of a talk for a question, best first, each once."""


def dialogues() -> list[Talk]:
    """The ten dialogues; the first speaker is the user, the other the assistant; categories 1-4 only."""
    return [_dialogue(f"locomo-{number}", item) for number, item in enumerate(json.loads(LOCOMO.read_text()))]


def _dialogue(name: str, item: dict[str, Any]) -> Talk:
    talk, rows, offsets = item["conversation"], list[Row](), dict[str, int]()
    for number in range(1, 1 + max(int(key.split("_")[1]) for key in talk if re.fullmatch(r"session_\d+", key))):
        if f"session_{number}" not in talk:
            continue
        start = datetime.strptime(talk[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        for second, turn in enumerate(talk[f"session_{number}"]):
            caption = f" [image: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
            text = f"{turn['speaker']}: {turn['text']}{caption}"
            time_ = (start + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%SZ")
            kind = UserRow if turn["speaker"] == talk["speaker_a"] else AssistantRow
            offsets[turn["dia_id"]] = len(rows) + 1
            rows.append(Row(len(rows) + 1, kind((TextBlock(text),), create_time=time_)))
    questions = []
    for asked in item["qa"]:
        # Some are written D:11:26 or D30:05.
        found = (match for entry in asked["evidence"] for match in re.findall(r"D:?(\d+):0*(\d+)", entry))
        named = (f"D{session}:{turn}" for session, turn in found)
        evidence = frozenset(offsets[ref] for ref in named if ref in offsets)
        if evidence and asked["category"] in CATEGORIES:
            questions.append(Question(asked["question"], CATEGORIES[asked["category"]], evidence))
    return Talk(name, tuple(rows), tuple(questions))


def coding() -> Talk:
    """The coding session with the questions of ``questions.json``."""
    (recording,) = load(CODING)
    asked = json.loads(QUESTIONS.read_text())["questions"]
    return Talk(
        "coding-session",
        tuple(Row(offset, row.body) for offset, row in enumerate(recording.rows, 1)),
        tuple(Question(item["question"], item["kind"], frozenset(item["rows"])) for item in asked),
    )


def text_of(row: Row) -> str:
    """The text of a dialogue's row."""
    return next(block.text for block in getattr(row.body, "content", ()) if isinstance(block, TextBlock))


def recall(search: Search, talks: Iterable[Talk]) -> dict[str, dict[str, float | int]]:
    """Shares of the evidence among the first hits, and mean reciprocal rank of the first of it: by category and all."""
    found: dict[str, list[list[float]]] = {}
    for talk in talks:
        for question in talk.questions:
            offsets = list(search(talk, question.text))[:MOST_HITS]
            shares = [len(question.evidence & set(offsets[:cut])) / len(question.evidence) for cut in CUTS]
            row = [*shares, reciprocal_rank(offsets, question.evidence)]
            for part in (question.kind, "all"):
                found.setdefault(part, []).append(row)
    names = [*(f"recall@{cut}" for cut in CUTS), "mrr"]
    return {
        part: {"questions": len(rows)}
        | {
            name: round(statistics.fmean(values), 4)
            for name, values in zip(names, zip(*rows, strict=True), strict=True)
        }
        for part, rows in sorted(found.items())
    }


def reciprocal_rank(offsets: Sequence[int], evidence: frozenset[int]) -> float:
    return next((1 / rank for rank, offset in enumerate(offsets, 1) if offset in evidence), 0.0)
