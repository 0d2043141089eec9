"""§7: each check rejects what it names and nothing else does; the nearest sound rewrite passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import RowKind, SummarySource
from foldline.domain.folding import CheckFailure, FoldPlan, RowFacts, Snapshot, to_ranges
from foldline.domain.policy import Policy, Retention, Summary
from foldline.domain.pressure import Limits
from foldline.engine.checks import Candidate, appends_only, check
from foldline.engine.planning import PlanInputs, plan
from foldline.engine.structure import analyze, must_stay, trailing_of_no_run, uncarried_results

from tests.decisions.table import marks
from tests.notation import snapshot
from tests.strategies import limits

HEADED = "\n\n".join(
    f"## {title}\nnone"
    for title in (
        "Goals and constraints",
        "Decisions and rationale",
        "Actions and results",
        "Errors and resolutions",
        "Open questions and next steps",
        "Technical details",
    )
)
POLICY = Policy(retention=Retention(1, 0), summary=Summary(appendix_tokens=50, ledger_tokens=80))
LIMITS = limits(8_000)


@dataclass(frozen=True)
class Case:
    """A rewrite on its way to ``check``; every field can be tampered with."""

    before: Snapshot
    after: tuple[RowFacts, ...]
    candidate: Candidate
    forced: bool = False
    planned: tuple[Snapshot, FoldPlan] | None = None
    limits: Limits = LIMITS
    tools_tokens: int = 0

    def failures(self) -> tuple[CheckFailure, ...]:
        return check(
            self.before,
            self.after,
            self.candidate,
            POLICY,
            self.limits,
            tools_tokens=self.tools_tokens,
            forced=self.forced,
            planned=self.planned,
        )

    def rules(self) -> set[str]:
        return {f.rule for f in self.failures()}


def sound(
    words: str = "S U A(c1,c2) R(c1) R(c2) A U A",
    *,
    in_run: bool = False,
    forced: bool = False,
    **snap: object,
) -> Case:
    """A case that the checks accept, as planned."""
    before = snapshot(words, **snap)  # type: ignore[arg-type]
    found = plan(before, analyze(before), PlanInputs(POLICY, LIMITS, in_run=in_run, forced=forced), {})
    assert found is not None
    return case(before, found, forced=forced)


def case(before: Snapshot, found: FoldPlan, *, forced: bool = False) -> Case:
    """The rewrite that a plan makes, with a short summary."""
    offset = len(before.rows) + 100
    summary = RowFacts(offset, RowKind.COMPACTION_SUMMARY, 40, 160, summary_of_run=found.covers_run)
    rows = {r.offset: r for r in before.rows} | {offset: summary}
    order = list(found.retain)
    at = len(order) if found.insert_before is None else order.index(found.insert_before)
    after = tuple(rows[o] for o in (*order[:at], offset, *order[at:]))
    candidate = Candidate(
        found,
        summary,
        HEADED,
        SummarySource.PROVIDER,
        prose_tokens=40,
        discarded=to_ranges(found.discard),
        digest="aa",
    )
    return Case(before, after, candidate, forced)


def replan(base: Case, **changes: object) -> Case:
    """The same case under another plan, carried through to list and record."""
    changed = replace(base.candidate.plan, **changes)  # type: ignore[arg-type]
    return case(base.before, changed, forced=base.forced)


def moved(base: Case, *offsets: int) -> Case:
    """The case with rows moved between discarded and retained, record included."""
    gone = set(base.candidate.plan.discard).symmetric_difference(offsets)
    order = [r.offset for r in base.before.rows]
    retain = tuple(o for o in order if o not in gone)
    before = base.candidate.plan.insert_before
    if not base.candidate.plan.covers_run:
        first = min(o for o in gone if base.before.rows[o - 1].kind != RowKind.SYSTEM)
        before = next((o for o in retain if o > first), None)
    elif before not in retain:
        before = next((o for o in retain if before is not None and o > before), None)
    return replan(base, discard=tuple(o for o in order if o in gone), retain=retain, insert_before=before)


def said(base: Case, **changes: object) -> Case:
    return replace(base, candidate=replace(base.candidate, **changes))  # type: ignore[arg-type]


SOUND = [
    # (rule, case, rewrite)
    ("V3", "whole: at the first discarded row, behind leading system rows", sound()),
    ("V3", "whole check of a run", sound("S U A U A U", run="r", request=(6,))),
    ("V3", "stage 1", sound("S U A U A(c1) R(c1) A", in_run=True, run="r", request=(4,))),
    ("V3", "stage 2", sound("U A(c1) R(c1) U A(c2) R(c2)", in_run=True, run="r", request=(1,))),
    ("V3", "a place moved before a unit", sound("A(c1)! N R(c1) U A U A")),
    ("V3", "behind a system row that folds along", sound("S- S U A U A")),
    (
        "V5",
        "the forced fold of a continued run takes every round",
        sound("U@r1 A(c1)@r1 R(c1)@r1", forced=True, run="r2", request=(1,), continues="r1"),
    ),
    ("V4", "injected context, paused rows", sound("S I U A@r^ N A@r> I U A@s U A@t")),
    ("V4", "a late result may outlive its call", sound("U A(c1) U A R(c1)~ U A", carried=4)),
    ("V5", "a late result that was carried folds", sound("U A(c1) U A R(c1)~ A U A")),
    ("V5", "a superseded system row folds along", sound("S S- U A U A")),
    ("V6", "a provider's summary has six headings", said(sound(), source=SummarySource.PROVIDER)),
    ("V6", "an extractive one has headings of its own", said(sound(), source=SummarySource.EXTRACTIVE, text="words")),
]


@pytest.mark.parametrize("base", marks(SOUND))
def test_accepts(base: Case) -> None:
    assert base.failures() == ()


def swap(base: Case, i: int, j: int) -> Case:
    after = list(base.after)
    after[i], after[j] = after[j], after[i]
    return replace(base, after=tuple(after))


def place(base: Case, index: int) -> Case:
    rest = [r for r in base.after if r.offset != base.candidate.summary.offset]
    rest.insert(index, base.candidate.summary)
    return replace(base, after=tuple(rest))


def alter(base: Case, index: int, **changes: object) -> Case:
    after = list(base.after)
    after[index] = replace(after[index], **changes)  # type: ignore[arg-type]
    return replace(base, after=tuple(after))


def weighed(factor: float, summary: int) -> Case:
    """Estimates by a learned factor: of 801 raw tokens before, 501 of which fold."""
    return alter(sound("S U=101 A(c1,c2) R(c1) R(c2) A U A", factor=factor), 1, tokens=summary)


def only_system_and_summaries() -> Case:
    before = snapshot("S K U A")
    base = plan(before, analyze(before), PlanInputs(Policy(retention=Retention(0, 0)), LIMITS), {})
    assert base is not None
    return case(before, replace(base, discard=(2,), retain=(1, 3, 4), insert_before=3))


def only_superseded() -> Case:
    before = snapshot("S- S U A")
    base = plan(before, analyze(before), PlanInputs(Policy(retention=Retention(0, 0)), LIMITS), {})
    assert base is not None
    return said(
        case(before, replace(base, discard=(1,), retain=(2, 3, 4), insert_before=2)), prose_tokens=0, summary=_row(104)
    )


def record_of(base: Case, *offsets: int) -> Case:
    return said(base, discarded=to_ranges(offsets))


RUN = sound("S U A U A(c1) R(c1) A(c2) R(c2)", in_run=True, run="r", request=(4,))
ROUNDS = sound("U N A(c1) R(c1) U A(c2) R(c2)", in_run=True, run="r", request=(1, 2))


def unit() -> Case:
    return sound("A(c1)! N R(c1) U A U A")


def older() -> Case:
    return sound("U A U A(c1) R(c1) U A")


def interim() -> Case:
    return sound("U A(c1) R(c1)? R(c1)~ U A")


def context() -> Case:
    return sound("I U A U A")


def paused() -> Case:
    return sound("U@r A@r^ A@r U@s A@s")


OPEN: dict[str, object] = {"in_run": True, "run": "r", "request": (1,)}


def noticed() -> Case:
    return sound("U A A N", **OPEN)


def steered() -> Case:
    return sound("U A(c) R(c) I U A A", **OPEN)


def late(carried: int) -> Case:
    return sound("U@r A(c)@r U@s A@s U@s R(c)@r~ A@s U@s A@s", carried=carried)


def broad() -> Case:
    """A fold under whose T all of ``max_tokens`` fits."""
    return replace(sound(), limits=limits(80_000))


def quarter() -> Case:
    return replace(sound(), limits=limits(2_000))


def room() -> Case:
    """T is 2 000, what stays takes 1 700."""
    return replace(sound("S U=3000 A=3000 U=800 A=800"), limits=limits(2_000))


def reserved() -> Case:
    """W is 2 500 and 600 of it are reserved: what stays leaves less under W than under T."""
    return replace(sound("S U=3000 A=3000 U=700 A=700"), limits=limits(2_000, reserve=600))


def tools() -> Case:
    return replace(sound("S U=3000 A=3000 U=400 A=400"), limits=limits(2_000), tools_tokens=700)


def no_room() -> Case:
    return replace(sound("S U=3000 A=3000 U=1000 A=1000"), limits=limits(2_000))


def native() -> Case:
    base = said(sound(), source=SummarySource.NATIVE, text="", complete=False, prose_tokens=99_999)
    item = replace(base.candidate.summary, kind=RowKind.PROVIDER_COMPACTION)
    return alter(said(base, summary=item), 1, kind=RowKind.PROVIDER_COMPACTION)


Build = Callable[[], Case]
REJECTED: list[tuple[str, str, Build, Build]] = [
    # (rule, case, the rewrite that is rejected, the nearest one that is not)
    ("V1", "a row neither retained nor discarded", lambda: _unplanned(sound(), 8), sound),
    ("V1", "a row both", lambda: _with_plan(sound(), retain=(1, 6, 7, 8)), sound),
    ("V1", "nothing but a summary", only_system_and_summaries, lambda: sound("S K U A U A")),
    ("V1", "an offset that is not active", lambda: _with_plan(sound(), retain=(1, 7, 8, 99)), sound),
    ("V1", "an offset twice", lambda: _with_plan(sound(), retain=(1, 7, 8, 8)), sound),
    ("V1", "a retained row that is missing", lambda: _without(sound(), 8), sound),
    ("V2", "retained rows in another order", lambda: swap(sound(), 2, 3), sound),
    ("V2", "a retained row with another body", lambda: alter(sound(), 3, digest=b"other"), sound),
    ("V2", "a retained row of another kind", lambda: alter(sound(), 3, kind=RowKind.NOTICE), sound),
    ("V2", "a retained row of other bytes", lambda: alter(sound(), 3, bytes=399), sound),
    ("V2", "a retained row twice", lambda: replace(sound(), after=(*sound().after, sound().after[-1])), sound),
    ("V3", "before a leading system row", lambda: place(sound(), 0), lambda: place(sound(), 1)),
    ("V3", "one row late", lambda: place(sound(), 2), sound),
    ("V3", "at the end", lambda: place(sound(), 3), sound),
    ("V3", "inside a unit", lambda: place(unit(), 1), unit),
    ("V3", "stage 1 behind the request", lambda: place(RUN, 2), lambda: RUN),
    ("V3", "stage 2 before the request", lambda: place(ROUNDS, 0), lambda: ROUNDS),
    ("V3", "stage 2 inside the request", lambda: place(ROUNDS, 1), lambda: ROUNDS),
    ("V3", "stage 2 behind the newest round", lambda: place(ROUNDS, 5), lambda: ROUNDS),
    ("V3", "two new rows", lambda: replace(sound(), after=(*sound().after, _row(200))), sound),
    ("V3", "no new row", lambda: replace(sound(), after=tuple(r for r in sound().after if r.offset < 100)), sound),
    ("V3", "a new row that is no summary", lambda: alter(sound(), 1, kind=RowKind.USER), sound),
    ("V3", "a native item of a written summary", lambda: alter(sound(), 1, kind=RowKind.PROVIDER_COMPACTION), native),
    ("V3", "a summary of another fold", lambda: said(sound(), summary=_row(300)), sound),
    ("V4", "a result without its call", lambda: moved(older(), 5), lambda: moved(older(), 4, 5)),
    ("V4", "a call without its result", lambda: moved(older(), 4), lambda: moved(older(), 4, 5)),
    ("V4", "half a batch", lambda: moved(sound(), 4), lambda: moved(sound(), 3, 4, 5)),
    ("V4", "an interim result without its call", lambda: moved(interim(), 3), lambda: moved(interim(), 2, 3)),
    ("V4", "a user row without its injected context", lambda: moved(context(), 2), lambda: moved(context(), 1, 2)),
    ("V4", "half of a paused message", lambda: moved(paused(), 3), lambda: moved(paused(), 2, 3)),
    ("V5", "a current system row", lambda: moved(sound(), 1), lambda: sound("S- U A U A")),
    ("V5", "a pin", lambda: moved(sound("U A U! A U A"), 3), lambda: moved(sound("U A U A U A"), 3)),
    ("V5", "the unit of a pin", lambda: moved(sound("A(c)! R(c) U A U A"), 1, 2), lambda: sound("A(c) R(c) U A U A")),
    ("V5", "the request", lambda: moved(RUN, 4), lambda: RUN),
    ("V5", "a row of the request", lambda: moved(sound("U A U N", run="r", request=(3, 4)), 4), lambda: RUN),
    ("V5", "the newest round", lambda: moved(RUN, 7, 8), lambda: ROUNDS),
    ("V5", "a notice of the newest round", lambda: moved(noticed(), 4), lambda: sound("U A N A", **OPEN)),
    ("V5", "a user row of the run", lambda: moved(ROUNDS, 5), lambda: ROUNDS),
    ("V5", "the context of a user row of the run", lambda: moved(steered(), 4, 5), steered),
    ("V5", "a result not yet carried, with its call", lambda: _uncarried(4), lambda: _uncarried(5)),
    ("V5", "a late result not yet carried", lambda: moved(late(5), 6), lambda: moved(late(6), 6)),
    ("V5", "a trailing row of no run", lambda: moved(sound("U A U A U", prepared=4), 5), lambda: sound("U A U A U")),
    ("V6", "blank", lambda: said(sound(), text=" \n"), sound),
    ("V6", "not finished", lambda: said(sound(), complete=False), sound),
    (
        "V6",
        "an appendix over its own",
        lambda: said(sound(), appendix_tokens=51),
        lambda: said(sound(), appendix_tokens=50),
    ),
    ("V6", "a ledger over its own", lambda: said(sound(), ledger_tokens=81), lambda: said(sound(), ledger_tokens=80)),
    ("V6", "a provider's without a heading", lambda: said(sound(), text=HEADED.replace("## D", "D")), sound),
    ("V6", "reasoning", lambda: said(sound(), text=HEADED + "\n<think>so</think>"), sound),
    ("V6", "tool protocol", lambda: said(sound(), text=HEADED + '\n<invoke name="read"></invoke>'), sound),
    ("V6", "not smaller", lambda: alter(sound(), 1, tokens=500), lambda: alter(sound(), 1, tokens=499)),
    # 801 and 800 raw tokens are both estimated at 240 by a factor of 0.3.
    ("V6", "smaller by less than a token", lambda: weighed(0.3, 500), lambda: weighed(0.3, 497)),
    ("V7", "ranges of other rows", lambda: record_of(sound(), 2, 3), lambda: record_of(sound(), 2, 3, 4, 5, 6)),
    ("V7", "ranges in another order", lambda: said(sound(), discarded=((5, 6), (2, 4))), sound),
    ("V7", "no digest", lambda: said(sound(), digest=""), sound),
    ("V9", "an edit since the snapshot", lambda: _edited(sound()), lambda: _planned(sound())),
]


def _row(offset: int) -> RowFacts:
    return RowFacts(offset, RowKind.COMPACTION_SUMMARY, 1, 1)


def _with_plan(base: Case, **changes: object) -> Case:
    return said(base, plan=replace(base.candidate.plan, **changes))  # type: ignore[arg-type]


def _unplanned(base: Case, offset: int) -> Case:
    retain = tuple(o for o in base.candidate.plan.retain if o != offset)
    return _with_plan(base, retain=retain)


def _uncarried(carried: int) -> Case:
    base = sound("U@r A@r U@r A(c1)@r R(c1)@r U@s A@s", carried=carried)
    return base if {4, 5} <= set(base.candidate.plan.discard) else moved(base, 4, 5)


def _without(base: Case, offset: int) -> Case:
    return replace(base, after=tuple(r for r in base.after if r.offset != offset))


def _planned(base: Case) -> Case:
    return replace(base, planned=(base.before, base.candidate.plan))


def _edited(base: Case) -> Case:
    then = replace(base.before, rows=tuple(r for r in base.before.rows if r.offset != 3))
    return replace(base, planned=(then, base.candidate.plan))


@pytest.mark.parametrize(("rule", "build", "nearest"), marks([(r[0], r[1], r[0], *r[2:]) for r in REJECTED]))
def test_rejects_and_names_its_rule(rule: str, build: Build, nearest: Build) -> None:
    built = build()
    assert built.rules() == {rule}, built.failures()
    assert nearest().failures() == ()


BUDGETS: list[tuple[str, str, Callable[[], Case], int]] = [
    # (rule, case, rewrite, the most that its prose may take)
    ("V6", "max_tokens", broad, POLICY.summary.max_tokens),
    ("V6", "a quarter of T", quarter, 500),
    ("V6", "the room that is left under T", room, 300),
    ("V6", "the room under W", reserved, 400),
    ("V6", "the room beside tools", tools, 400),
    ("V6", "never under the least", no_room, 256),
]


@pytest.mark.parametrize(("build", "most"), marks(BUDGETS))
def test_v6_the_budget_is_the_least_of_its_bounds(build: Callable[[], Case], most: int) -> None:
    assert said(build(), prose_tokens=most).failures() == ()
    assert said(build(), prose_tokens=most + 1).rules() == {"V6"}


def test_v1_superseded_system_rows_alone_are_no_reason_to_fold() -> None:
    """F11: no summary of nothing is smaller either."""
    assert "V1" in only_superseded().rules()
    assert sound("S- S U A U A").failures() == ()


def test_every_rule_is_rejected_somewhere() -> None:
    assert {r[0] for r in REJECTED} == {"V1", "V2", "V3", "V4", "V5", "V6", "V7", "V9"}


def test_v3_a_native_fold_adds_its_item_and_no_text_is_read() -> None:
    """V6: the text checks do not apply to native folds."""
    assert native().failures() == ()


def test_v3_a_summary_of_a_closed_run_stands_where_its_plan_put_it() -> None:
    """A5."""
    closed = replace(ROUNDS, before=replace(ROUNDS.before, open_run=None))
    assert closed.failures() == ()
    assert place(closed, 0).rules() == {"V3"}


def test_v5_the_forced_fold_of_a_continued_run_takes_the_newest_round_only_where_it_is_forced() -> None:
    forced = sound("U@r1 A(c1)@r1 R(c1)@r1", forced=True, run="r2", request=(1,), continues="r1")
    assert forced.failures() == ()
    assert replace(forced, forced=False).rules() == {"V5"}


def test_v6_the_budget_is_judged_by_what_stayed_when_it_was_planned() -> None:
    """V9: what was appended since takes no room from a summary that was already asked for."""
    base = sound("U=3000 A=3000 U A")
    long = said(base, prose_tokens=1_900)
    assert long.failures() == ()
    grown = replace(base.before, rows=(*base.before.rows, replace(_row(50), kind=RowKind.USER, tokens=7_600)))
    plan_now = replace(base.candidate.plan, retain=(*base.candidate.plan.retain, 50))
    appended = replace(said(long, plan=plan_now), before=grown, after=(*base.after, grown.rows[-1]))
    assert appended.rules() == {"V6"}
    assert replace(appended, planned=(base.before, base.candidate.plan)).failures() == ()


TEXTS = [
    # (text, source, rejected)
    ('{"name": "read", "arguments": {}}', SummarySource.EXTRACTIVE, True),
    ('```json\n{"tool": "read", "input": {}}\n```', SummarySource.EXTRACTIVE, True),
    ('[{"type": "tool_use", "id": "x"}]', SummarySource.CURATOR, True),
    ('{"tool_calls": []}', SummarySource.CURATOR, True),
    ('{"goal": "ship", "state": "done"}', SummarySource.CURATOR, False),
    ("[1] the first, [2] the second", SummarySource.CURATOR, False),
    ("He wrote `<think>` into the template.", SummarySource.CURATOR, False),
    ("```\n<tool_call>\n```\nis what it sent", SummarySource.CURATOR, False),
    ("<thinking>first</thinking> then", SummarySource.CURATOR, True),
    ("</think> the rest", SummarySource.EXTRACTIVE, True),
    ("<tool_call>{}</tool_call>", SummarySource.COMPACTOR, True),
    ("<|channel|>analysis", SummarySource.CURATOR, True),
    ("[TOOL_CALLS] read", SummarySource.CURATOR, True),
    ("a < b and b > c, x <- y", SummarySource.CURATOR, False),
    ("plain words", SummarySource.PROVIDER, True),
    (HEADED, SummarySource.PROVIDER, False),
    (HEADED.replace("## ", "**").replace("\nnone", "**\nnone"), SummarySource.PROVIDER, False),
    ("\n\n".join(reversed(HEADED.split("\n\n"))), SummarySource.PROVIDER, True),
    (HEADED.upper(), SummarySource.PROVIDER, False),
]


@pytest.mark.parametrize(("text", "source", "rejected"), TEXTS)
def test_v6_text(text: str, source: SummarySource, rejected: bool) -> None:
    assert (said(sound(), text=text, source=source).rules() == {"V6"}) is rejected


APPENDS = [
    # (rule, case, list of the snapshot, list now, whether it differs by appends only)
    ("V9", "nothing", "S U A", "S U A", True),
    ("V9", "rows at the end", "S U A", "S U A U", True),
    ("V9", "a row gone", "S U A", "S U", False),
]


@pytest.mark.parametrize(("then", "now", "only"), marks(APPENDS))
def test_v9_appends_only(then: str, now: str, only: bool) -> None:
    assert appends_only(snapshot(then), snapshot(now)) is only


def test_v9_a_keyed_system_row_may_stand_at_its_inherited_place() -> None:
    then = snapshot("S U A")
    first = replace(then.rows[0], system_key="k")
    then = replace(then, rows=(first, *then.rows[1:]))
    version = replace(first, offset=9, digest=b"9")
    old = replace(first, superseded=True)
    assert appends_only(then, replace(then, rows=(old, version, *then.rows[1:])))
    other = replace(version, system_key="other")
    assert not appends_only(then, replace(then, rows=(old, other, *then.rows[1:])))


MUST_STAY = [
    # (rule, case, transcript, run request, carried, prepared, what stays)
    ("V5", "current system rows", "S S- U A", None, 9, 9, {1}),
    ("V5", "pins with their unit", "U! A(c1) R(c1)! U A", None, 9, 9, {1, 2, 3}),
    ("V5", "a pinned injected row holds its user row", "I! U A", None, 9, 9, {1, 2}),
    ("V5", "request, user rows, newest round", "U A U A(c1) R(c1) U A(c2) R(c2)", (3,), 9, 9, {3, 6, 7, 8}),
    ("V5", "a steering row's injected context", "U A(c1) R(c1) I U A", (1,), 9, 9, {1, 4, 5, 6}),
    ("F6", "a result not yet carried, with its batch", "U@r A(c1,c2)@r R(c1)@r R(c2)@r U@s A@s", None, 3, 9, {2, 3, 4}),
    ("F6", "a late result not yet carried, alone", "U@r A(c1)@r U@s R(c1)@r~ A@s", None, 3, 9, {4}),
    ("V5", "what no run appended since the last request", "U A U N", None, 9, 2, {3, 4}),
    ("V5", "but not what an answer followed", "U A U A", None, 9, 2, set()),
    ("V5", "nor what was prepared", "U A U", None, 9, 3, set()),
    ("V5", "nor rows of a run", "U A U@r9", None, 9, 2, set()),
    ("V5", "imported results that an imported answer followed", "U A(c1) R(c1) A", None, 0, 0, set()),
    ("V5", "but not the last imported one", "U A(c1) R(c1) A(c2) R(c2)", None, 0, 0, {4, 5}),
]


@pytest.mark.parametrize(("words", "request_rows", "carried", "prepared", "stay"), marks(MUST_STAY))
def test_must_stay(
    words: str, request_rows: tuple[int, ...] | None, carried: int, prepared: int, stay: set[int]
) -> None:
    snap = snapshot(
        words, run="r1" if request_rows else "", request=request_rows or (), carried=carried, prepared=prepared
    )
    assert must_stay(snap, analyze(snap)) == stay


def test_the_forced_fold_of_a_continued_run_may_take_the_newest_round() -> None:
    """4.4."""
    snap = snapshot("U A(c1) R(c1) A(c2) R(c2)", run="r1", request=(1,))
    assert must_stay(snap, analyze(snap), newest_round=False) == {1}


def test_trailing_rows_end_at_the_last_answer() -> None:
    snap = snapshot("A U S U", prepared=0)
    assert trailing_of_no_run(snap) == {2, 4}


def test_uncarried_results_name_only_results() -> None:
    assert uncarried_results(snapshot("U@r A(c1)@r R(c1)@r N", carried=1)) == {3}
