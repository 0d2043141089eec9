"""S6: how tasks travel, whom they go to, and what a curator's text carries (F8, V6, S9)."""

from __future__ import annotations

from typing import Any

from foldline import _core
from foldline.domain.curators import Curated, CuratorRole, Handed, Registration, Work
from foldline.domain.enums import SummarySource, Trigger
from foldline.domain.folding import SummaryFailed, SummaryRequest
from foldline.domain.rows import AssistantRow, CompactionSummaryRow, Row, TextBlock, UserRow
from foldline.server.codec.curators import wire_task
from foldline.server.codec.rows import wire_row
from foldline.summarize.curated import CuratedText
from hypothesis import given, settings
from hypothesis import strategies as st

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=300)
RULES = ["Never touch deploy/production.yaml.", "You must always run make lint.", "Do not use the network in tests."]


def count(text: str) -> int:
    return _core.count_tokens(text, "o200k_base")


def row(offset: int, text: str) -> Row:
    body: Any = UserRow if offset % 2 else AssistantRow
    return Row(offset, body((TextBlock(text),)))


def work(rows: list[Row], **fields: Any) -> Work:
    return Work(
        role=CuratorRole.CURATOR, tenant="", session_id="s", key=1, fold_id="f", trigger=Trigger.MANUAL, rows=rows,
        earlier=(), budget=500, timeout=1, **fields,
    )  # fmt: skip


@given(st.lists(st.integers(0, 900), max_size=40), st.integers(200, 2000), WORDS)
@settings(max_examples=50)
def test_the_parts_of_a_task_are_its_rows(sizes: list[int], most: int, instructions: str) -> None:
    """In order, whole, and no message over the limit but for a row that is over it alone."""
    rows = [row(n + 1, "x" * size) for n, size in enumerate(sizes)]
    handed = Handed("t", work(rows, instructions=instructions), 1, 2.0, 1.0)
    first, *further = wire_task(handed, most)
    parts = [first.task, *(message.rows for message in further)]
    assert [r for part in parts for r in part.rows] == [wire_row(r) for r in rows]
    assert [part.more_rows for part in parts] == [True] * len(further) + [False]
    assert all(message.rows.task_id == "t" for message in further)
    for message, part in zip([first, *further], parts, strict=True):
        assert message.ByteSize() <= most + 64 or len(part.rows) <= 1
        assert part is parts[0] or part.rows, "no message for nothing"
    if first.task.rows:
        assert first.ByteSize() <= most + 64, "what is beside the rows leaves them less room"


LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3)


@given(LABELS, LABELS, st.booleans(), st.booleans(), st.sampled_from(CuratorRole), st.sampled_from(["", "acme"]))
def test_a_host_takes_what_has_all_it_asks_for(
    asked: dict[str, str], has: dict[str, str], opted: bool, background: bool, role: CuratorRole, tenant: str
) -> None:
    """A4: tasks ahead of need only if it opted in."""
    host = Registration(CuratorRole.CURATOR, labels=asked, background=opted)
    expected = asked.items() <= has.items() and role is CuratorRole.CURATOR and not tenant and (opted or not background)
    assert host.takes(role, tenant, has, background=background) is expected


@given(
    text=WORDS.filter(str.strip), rules=st.lists(st.sampled_from(RULES), unique=True),
    earlier=st.lists(st.sampled_from(RULES), unique=True), budget=st.integers(40, 600), floor=st.sampled_from([0, 1]),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_f8_a_text_in_its_budget_is_kept_with_every_constraint_that_is_due(
    text: str, rules: list[str], earlier: list[str], budget: int, floor: float
) -> None:
    rows = [row(2 * n + 1, f"Mend the parser of app{n}.toml. {rule}") for n, rule in enumerate(rules)]
    rows.append(row(99, "Go on with the work. " * 60))
    before = CompactionSummaryRow("Done so far.", "f-1", SummarySource.CURATOR, durable=tuple(earlier))
    asked = SummaryRequest(
        rows=tuple(rows), earlier=(before,),
        budget=budget, appendix=100, coverage_floor=floor, count=count,
    )  # fmt: skip
    carried = CuratedText(asked, count)
    fits = count(text.rstrip()) + carried.tokens <= budget
    try:
        made = carried.into(Curated(text))
    except SummaryFailed:
        assert not fits, "a text within what its task allows is never refused for what we add"
        return
    assert made.text.startswith(text.rstrip())
    assert all(rule in made.text for rule in made.durable)
    if carried.tokens:
        assert count(made.text) - made.appendix_tokens <= budget
    assert made.appendix_tokens <= 100
    newest = (earlier + [r for r in rules if r not in earlier])[-1:]
    if newest and budget >= 300:
        assert set(newest) <= set(made.durable), "the oldest give way first"
