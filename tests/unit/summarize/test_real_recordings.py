"""S8 over real recordings, where they are: every budget, every promise; and that the work grows as the rows do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from foldline.demo.session import recording
from foldline.domain.enums import SummarySource
from foldline.domain.policy import DEFAULT_REDACT
from foldline.domain.rows import Row, SystemRow
from foldline.engine.summary_text import text_faults
from foldline.formats.importers import load

from tests.unit.summarize.talk import count, filler, rows, summarize

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"
FILES = ("coding-session.jsonl", "bugfix-function-calling.traj", "bugfix-text-actions.traj", "airline-runs.json")


def real(name: str) -> list[tuple[Row, ...]]:
    if name == "demo":
        return [tuple(Row(i, r.body) for i, r in enumerate(recording().rows, 1))]
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not here")
    found = []
    for one in load(DATA / name)[:10]:
        found.append(tuple(Row(i, r.body) for i, r in enumerate(one.rows, 1) if not isinstance(r.body, SystemRow)))
    return found


@pytest.mark.parametrize("name", ["demo", *FILES])
@pytest.mark.parametrize("budget", [256, 1024, 4096])
def test_s8_real_rows_keep_every_promise(name: str, budget: int) -> None:
    for source in real(name):
        summary = summarize(source, budget=budget, appendix=512, floor=0.6, redact=DEFAULT_REDACT)
        assert list(text_faults(summary.text, SummarySource.PROVIDER)) == []
        assert count(summary.text) - summary.appendix_tokens <= budget
        assert summary.appendix_tokens <= 512
        if summary.coverage.identifiers and budget >= 1024:
            assert summary.coverage.with_appendix >= 0.4
        assert "Last request [#" in summary.text


def test_s8_every_section_of_a_real_session_says_something() -> None:
    (source,) = real("coding-session.jsonl")
    text = summarize(source, budget=4096).text
    assert "\nnone" not in text


def test_s8_the_work_grows_as_the_rows_do() -> None:
    """Ten times the rows take at most twenty times as long: nothing is quadratic."""

    def seconds(turns: int) -> float:
        source = rows(*[b for n in range(turns // 10) for b in filler(10, f"module{n}")])
        summarize(source, budget=4096, appendix=512, floor=1.0)
        started = time.process_time()
        summarize(source, budget=4096, appendix=512, floor=1.0)
        return time.process_time() - started

    assert seconds(2_000) < 20 * max(seconds(200), 0.01)
