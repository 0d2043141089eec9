"""The demo session: a seeded recording with facts planted early, and questions whose answers fold away."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from random import Random

from foldline.demo.incident import draw
from foldline.demo.script import MODEL, play
from foldline.formats.importers import Recording, Step


@dataclass(frozen=True, slots=True)
class Question:
    """A question to memory, and words that stand in a row that answers it."""

    query: str
    marker: str


def recording(seed: int = 7) -> Recording:
    """The session as model calls; the same seed gives the same bytes. Usage is the player's to report."""
    story = files(__package__).joinpath("story.txt").read_text(encoding="utf-8")
    turns = play(story, draw(seed), Random(seed))
    return Recording("lost-webhooks", tuple(Step(rows, (answer,), model=MODEL) for rows, answer in turns))


def questions() -> tuple[Question, ...]:
    """Three questions about rows of the first three days of five."""
    return (
        Question("How many requests per second may a replay send to Cardnet?", "limits us to 40 requests per second"),
        Question("Why was the ingress timeout set back to 30 s?", "p99 rises from about 240 ms to about 910 ms"),
        Question("Which commit made the stream drop webhooks that nobody had read?", "Root cause: commit 4be19d7"),
    )
