"""The session that ships with the package: a believable recording whose early facts fold away."""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import pytest
from foldline.demo.incident import CAP, draw
from foldline.demo.session import questions, recording
from foldline.domain.enums import TranscriptSource
from foldline.domain.rows import (
    AssistantRow,
    ImageBlock,
    ModelRef,
    NewRow,
    NoticeRow,
    ReasoningBlock,
    TextBlock,
    ToolResultRow,
    TranscriptBlock,
    UserRow,
    calls_of,
    encode_body,
)
from foldline.domain.session import Session
from foldline.engine.appending import accept
from foldline.summarize.constraints import constraints_of
from foldline.summarize.reading import read_rows

ROWS = recording().rows


def digest(seed: int) -> str:
    return hashlib.sha256(b"".join(encode_body(r.body) for r in recording(seed).rows)).hexdigest()


def text_of(row: NewRow) -> str:
    return "\n".join(getattr(b, "text", "") for b in getattr(row.body, "content", ()))


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    assert digest(7) == digest(7)
    assert len({digest(seed) for seed in range(5)}) == 5


@pytest.mark.parametrize("seed", [7, 1, 2, 3, 99])
def test_the_session_is_long_and_holds_every_kind_of_row(seed: int) -> None:
    rows = recording(seed).rows
    assert len(rows) >= 400
    kinds = Counter(type(r.body) for r in rows)
    assert kinds[UserRow] >= 30
    assert kinds[NoticeRow] >= 5
    assert kinds[AssistantRow] >= 150
    assert kinds[ToolResultRow] >= 150
    blocks = Counter(type(b) for r in rows for b in getattr(r.body, "content", ()))
    assert blocks[ReasoningBlock] >= 3
    assert blocks[ImageBlock] == 1
    assert not any(
        isinstance(b, TranscriptBlock) and b.source == TranscriptSource.SPOKEN_UNMEASURED
        for r in rows
        for b in getattr(r.body, "content", ())
    )


def test_it_has_parallel_calls_failures_and_long_outputs() -> None:
    assert sum(len(calls_of(r.body)) > 1 for r in ROWS) >= 30
    assert sum(isinstance(r.body, ToolResultRow) and r.body.is_error for r in ROWS) >= 5
    assert max(len(text_of(r)) for r in ROWS if isinstance(r.body, ToolResultRow)) > 5_000


def test_an_append_takes_it_whole_and_every_call_is_answered() -> None:
    empty = Session(key=1, tenant="", session_id="s", create_time="", model=ModelRef())
    accepted = accept(empty, ROWS, "", {})
    assert len(accepted.rows) == len(ROWS)
    assert not [c for c in accepted.session.calls if not c.answered]
    for row in ROWS:
        for call in calls_of(row.body):
            assert isinstance(json.loads(call.arguments_json), dict)


def test_time_only_goes_forward_over_five_days() -> None:
    times = [r.body.create_time for r in ROWS]
    assert times == sorted(times)
    assert {t[:10] for t in times} == {f"2026-03-0{day}" for day in range(2, 7)}


def test_no_fact_is_left_unfilled() -> None:
    for row in ROWS:
        body = encode_body(row.body).decode()
        assert "{{" not in body
        assert "@" not in text_of(row)[:1]


def test_answers_stand_in_early_rows_only() -> None:
    """Each marker is in one or two rows, all in the first half: they are folded when the questions are asked."""
    assert len(questions()) == 3
    for question in questions():
        at = [index for index, row in enumerate(ROWS) if question.marker in text_of(row)]
        assert 1 <= len(at) <= 2
        assert max(at) < len(ROWS) // 2
        assert question.marker not in question.query


def test_constraints_are_stated_early_and_found() -> None:
    reading = read_rows(accept(Session(1, "", "s", "", ModelRef()), ROWS[:60], "", {}).rows, lambda t: t)
    stated = [c.text for c in constraints_of(reading.requests)]
    assert any("never write to the production database" in s for s in stated)
    assert any("40 requests per second" in s for s in stated)


def test_its_texts_vary() -> None:
    """Not the same few sentences over and over: most assistant texts are unlike any other."""
    said = Counter(text_of(r) for r in ROWS if isinstance(r.body, AssistantRow) and not calls_of(r.body))
    assert len(said) >= 0.75 * said.total()


@pytest.mark.parametrize("seed", range(20))
def test_the_facts_of_an_incident_agree(seed: int) -> None:
    world = draw(seed)
    lost = world.lost_by_minute()
    assert sum(lost.values()) == sum(m.lost for m in world.merchants) == world.facts["lost"]
    assert all(dict(world.burst)[minute] > CAP for minute in lost)
    assert world.facts["booked"] + world.facts["lost"] == world.facts["sent"]
    assert world.facts["recovered"] == world.facts["backlog"] - 5
    assert max(p.skew_ms for p in world.pods) < 300_000


def test_a_user_row_with_a_picture_still_speaks() -> None:
    (row,) = [r for r in ROWS if any(isinstance(b, ImageBlock) for b in getattr(r.body, "content", ()))]
    assert isinstance(row.body.content[0], TextBlock)
