"""§4: each signal at its limit, what limits a request, what is a reading, what did not fit, what is learned."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from foldline._core import count_tokens, measure_rows, weighted_tokens
from foldline.domain.changes import replace
from foldline.domain.enums import (
    ModelType,
    ReadingSource,
    RefusalKind,
    SignalKind,
    SkipReason,
    Suppression,
    Trigger,
    TriggerClass,
    WarningCode,
)
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.models import Factor, ModelInfo, Usage
from foldline.domain.policy import Estimate, Policy
from foldline.domain.pressure import Limits
from foldline.domain.rows import (
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    ModelRef,
    TextBlock,
    UserRow,
    VideoBlock,
    encode_body,
)
from foldline.domain.session import Anchor, Cadence, DidNotFit, Prepared, Reading
from foldline.engine import cadence, factor, readings
from foldline.engine.catalog import Catalog
from foldline.engine.limits import limits
from foldline.engine.pressure import Measurement, measure
from foldline.engine.refusals import classify
from foldline.engine.usage import normalize
from foldline.v1 import compaction_pb2

from tests.decisions.script import Script
from tests.decisions.table import marks
from tests.support.server import Client

MODEL, OTHER = ModelRef("openai", "gpt-4o"), ModelRef("anthropic", "claude-sonnet-4-5")
LIMITS = Limits(threshold=800, ceiling=1_000, input_budget=900, reserve=100, body_cap=5_000, byte_limit=4_000)
NO_CAP = replace(LIMITS, body_cap=None, byte_limit=None)
M = Measurement(model=MODEL, factor=Factor(MODEL), transcript_tokens=500, transcript_bytes=2_000)
LEFT_UNDER, LEFT_AT = {"left_tokens": 799, "left_threshold": 800}, {"left_tokens": 800, "left_threshold": 800}
EXACT, ANCHORED, ESTIMATED, ABSENT = ReadingSource
ORDINARY, CAPACITY, FIT, MANUAL = TriggerClass
P1, P2, P3, P4_T, P4_W, P5, P6, P7 = SignalKind


def known(**fields: Any) -> Cadence:
    return Cadence(**fields)


def m(**fields: Any) -> Measurement:
    return replace(M, **fields)


SIGNALS = [
    # (rule, case, signal, measurement, record, value, tripped, source, class, suppressed by)
    ("P1", "no count", P1, M, known(), None, False, ABSENT, ORDINARY, None),
    ("P1", "a count at T", P1, M, known(count=Reading(800, MODEL)), 800, True, EXACT, ORDINARY, None),
    ("P1", "one below", P1, M, known(count=Reading(799, MODEL)), 799, False, EXACT, ORDINARY, None),
    ("P1", "another model's", P1, M, known(count=Reading(900, OTHER)), 900, True, EXACT, ORDINARY,
     Suppression.OTHER_MODEL),
    ("P1", "another provider's of the same name", P1, M, known(count=Reading(900, ModelRef("azure", "gpt-4o"))), 900,
     True, EXACT, ORDINARY, Suppression.OTHER_MODEL),
    ("P2", "no anchor", P2, M, known(), None, False, ABSENT, ORDINARY, None),
    ("P2", "the anchor and what came since, at T", P2, M, known(anchor=Anchor(700, 1, 400, MODEL)), 800, True,
     ANCHORED, CAPACITY, None),
    ("P2", "one below", P2, M, known(anchor=Anchor(699, 1, 400, MODEL)), 799, False, ANCHORED, CAPACITY, None),
    ("P2", "only what came since takes the factor", P2, m(factor=Factor(MODEL, 1.5)),
     known(anchor=Anchor(700, 1, 400, MODEL)), 850, True, ANCHORED, CAPACITY, None),
    ("P2", "nothing came since", P2, M, known(anchor=Anchor(700, 1, 500, MODEL)), 700, False, ANCHORED, CAPACITY, None),
    ("P2", "the answer as the provider counted it", P2, M,
     known(anchor=Anchor(700, 1, 400, MODEL, output_tokens=35, output_covered=60)), 775, False, ANCHORED, CAPACITY,
     None),
    ("P2", "an anchor at T is ordinary", P2, M, known(anchor=Anchor(800, 1, 500, MODEL)), 800, True, ANCHORED, ORDINARY,
     None),
    ("P2", "so is one where the last fold left T", P2, M, known(anchor=Anchor(700, 1, 400, MODEL), **LEFT_AT), 800,
     True, ANCHORED, ORDINARY, None),
    ("P2", "not where it left less", P2, M, known(anchor=Anchor(700, 1, 400, MODEL), **LEFT_UNDER), 800, True, ANCHORED,
     CAPACITY, None),
    ("P2", "another model's", P2, M, known(anchor=Anchor(790, 1, 400, OTHER)), 890, True, ANCHORED, CAPACITY,
     Suppression.OTHER_MODEL),
    ("P3", "the transcript at T, before any fold", P3, m(transcript_tokens=800), known(), 800, True, ESTIMATED,
     CAPACITY, None),
    ("P3", "one below", P3, m(transcript_tokens=799), known(), 799, False, ESTIMATED, CAPACITY, None),
    ("P3", "after the factor", P3, m(factor=Factor(MODEL, 1.6)), known(), 800, True, ESTIMATED, CAPACITY, None),
    ("P3", "where the last fold left it under its T", P3, m(transcript_tokens=800), known(**LEFT_UNDER), 800, True,
     ESTIMATED, CAPACITY, None),
    ("P3", "where the last fold left it at its T", P3, m(transcript_tokens=800), known(**LEFT_AT), 800, True, ESTIMATED,
     ORDINARY, None),
    ("P3", "an exact count is none of the transcript", P3, m(exact_tokens=900), known(), 500, False, ESTIMATED,
     CAPACITY, None),
    ("P4", "with the tools at T", P4_T, m(tools_tokens=300), known(), 800, True, ESTIMATED, ORDINARY, None),
    ("P4", "with the tools one below", P4_T, m(tools_tokens=299), known(), 799, False, ESTIMATED, ORDINARY, None),
    ("P4", "with tools and reserve at W", P4_W, m(tools_tokens=400), known(), 1_000, True, ESTIMATED, CAPACITY, None),
    ("P4", "with tools and reserve one below", P4_W, m(tools_tokens=399), known(), 999, False, ESTIMATED, CAPACITY,
     None),
    ("P4", "an exact count replaces the estimate", P4_T, m(tools_tokens=300, exact_tokens=700), known(), 700, False,
     EXACT, ORDINARY, None),
    ("P4", "of the window too", P4_W, m(exact_tokens=900), known(), 1_000, True, EXACT, CAPACITY, None),
    ("P4", "stated overhead takes the tools' place, without the factor", P4_T,
     m(factor=Factor(MODEL, 1.2), tools_tokens=500, overhead_tokens=190), known(), 790, False, ESTIMATED, ORDINARY,
     None),
    ("P4", "a count moved over a fold", P4_T, m(exact_tokens=800, exact_source=ANCHORED), known(), 800, True, ANCHORED,
     ORDINARY, None),
    ("P5", "at the limit", P5, m(tools_bytes=2_000), known(), 4_000, True, ESTIMATED, CAPACITY, None),
    ("P5", "one below", P5, m(tools_bytes=1_999), known(), 3_999, False, ESTIMATED, CAPACITY, None),
    ("P5", "exact bytes", P5, m(exact_bytes=4_000), known(), 4_000, True, EXACT, CAPACITY, None),
    ("P5", "overhead instead of tools", P5, m(tools_bytes=2_000, overhead_bytes=100), known(), 2_100, False, ESTIMATED,
     CAPACITY, None),
    ("P6", "it fit", P6, M, known(), None, False, ABSENT, FIT, None),
    ("P6", "on a whole check", P6, M, known(did_not_fit=DidNotFit("refused")), None, True, EXACT, FIT, None),
    ("P6", "in a run it waits", P6, m(in_run=True), known(did_not_fit=DidNotFit("bounded")), None, True, EXACT, FIT,
     Suppression.IN_RUN),
    ("P6", "not on the first check of a continued run", P6, m(in_run=True, first_check_of_continued_run=True),
     known(did_not_fit=DidNotFit("too_large")), None, True, EXACT, FIT, None),
    ("P7", "asked for", P7, m(manual=True), known(), None, True, EXACT, MANUAL, None),
    ("P7", "not asked for", P7, M, known(), None, False, ABSENT, MANUAL, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "given", "record", "value", "tripped", "source", "trigger_class", "suppressed"), marks(SIGNALS)
)
def test_signals(
    kind: SignalKind, given: Measurement, record: Cadence, value: int | None, tripped: bool, source: ReadingSource,
    trigger_class: TriggerClass, suppressed: Suppression | None,
) -> None:  # fmt: skip
    report = measure(given, record, LIMITS)
    assert [s.kind for s in report.signals] == list(SignalKind), "every report lists every signal"
    found = next(s for s in report.signals if s.kind is kind)
    assert (found.value, found.tripped, found.source) == (value, tripped, source)
    assert found.suppressed_by is suppressed
    if source is not ABSENT:
        assert found.trigger_class is trigger_class


def test_p5_without_a_cap_measures_and_cannot_trip() -> None:
    """4.2: "others none"."""
    found = next(s for s in measure(m(exact_bytes=10**12), Cadence(), NO_CAP).signals if s.kind is P5)
    assert (found.value, found.limit, found.tripped) == (10**12, None, False)


PLAIN, CEILING = ModelInfo(100_000), ModelInfo(100_000, input_ceiling=80_000)
THRESHOLDS = [
    # (rule, case, policy, model, the request's maximum output, (T, W, input budget, reserve, body cap, P5 limit))
    ("4.2", "a fraction of W", {}, PLAIN, None, (80_000, 100_000, 91_808, 8_192, 50_000_000, 40_000_000)),
    ("4.2", "another fraction", {"threshold_fraction": 0.5}, PLAIN, None,
     (50_000, 100_000, 91_808, 8_192, 50_000_000, 40_000_000)),
    ("4.2", "W is the ceiling where that is lower", {}, CEILING, None,
     (64_000, 80_000, 80_000, 8_192, 50_000_000, 40_000_000)),
    ("4.2", "a ceiling over the window is none", {}, ModelInfo(100_000, input_ceiling=200_000), None,
     (80_000, 100_000, 91_808, 8_192, 50_000_000, 40_000_000)),
    ("4.2", "an explicit T, whatever the window", {"auto_compact_threshold": 5_000_000}, PLAIN, None,
     (5_000_000, 100_000, 91_808, 8_192, 50_000_000, 40_000_000)),
    ("4.2", "the request's maximum output is the reserve", {}, PLAIN, 4_000,
     (80_000, 100_000, 96_000, 4_000, 50_000_000, 40_000_000)),
    ("4.2", "never over W/4", {}, PLAIN, 90_000, (80_000, 100_000, 75_000, 25_000, 50_000_000, 40_000_000)),
    ("4.2", "nor over what the model can give", {}, ModelInfo(100_000, max_output=2_000), 90_000,
     (80_000, 100_000, 98_000, 2_000, 50_000_000, 40_000_000)),
    ("4.2", "the policy's as it is", {"output_reserve_tokens": 60_000}, PLAIN, 4_000,
     (80_000, 100_000, 40_000, 60_000, 50_000_000, 40_000_000)),
    ("4.2", "none", {"output_reserve_tokens": 0}, PLAIN, 4_000, (80_000, 100_000, 100_000, 0, 50_000_000, 40_000_000)),
    ("4.2", "anthropic's body cap", {}, ModelInfo(100_000, ModelType.ANTHROPIC), None,
     (80_000, 100_000, 91_808, 8_192, 9_000_000, 7_200_000)),
    ("4.2", "google's body cap", {}, ModelInfo(100_000, ModelType.GOOGLE), None,
     (80_000, 100_000, 91_808, 8_192, 20_000_000, 16_000_000)),
    ("4.2", "others have none", {}, ModelInfo(100_000, ModelType.OTHER), None,
     (80_000, 100_000, 91_808, 8_192, None, None)),
    ("4.2", "the entry's own body cap", {}, ModelInfo(100_000, body_cap_bytes=1_000), None,
     (80_000, 100_000, 91_808, 8_192, 1_000, 800)),
    ("4.2", "the policy's before it", {"body_cap_bytes": 500, "byte_fraction": 1.0},
     ModelInfo(100_000, body_cap_bytes=1_000), None, (80_000, 100_000, 91_808, 8_192, 500, 500)),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "info", "maximum", "expected"), marks(THRESHOLDS))
def test_limits(policy: dict[str, Any], info: ModelInfo, maximum: int | None, expected: tuple[int | None, ...]) -> None:
    found = limits(Policy(**policy), info, maximum)
    assert (
        found.threshold, found.ceiling, found.input_budget, found.reserve, found.body_cap, found.byte_limit
    ) == expected  # fmt: skip


REFUSED_POLICIES = [
    ("4.2", "T of nothing", {"threshold_fraction": 0.001}, ModelInfo(500), "policy.auto_compact_threshold"),
    ("4.2", "a reserve of W", {"output_reserve_tokens": 80_000}, CEILING, "policy.output_reserve_tokens"),
    ("4.2", "a reserve over W", {"output_reserve_tokens": 90_000}, CEILING, "policy.output_reserve_tokens"),
]


@pytest.mark.parametrize(("policy", "info", "place"), marks(REFUSED_POLICIES))
def test_policies_that_leave_no_room_are_refused(policy: dict[str, Any], info: ModelInfo, place: str) -> None:
    with pytest.raises(FoldlineError) as caught:
        limits(Policy(**policy), info)
    assert (caught.value.reason, caught.value.metadata["field"]) == (Reason.FIELD_VALIDATION, place)


CATALOG = Catalog.from_json({"own": {"context_window": 9_000}, "default": {"context_window": 7_000, "type": "google"}})
LOOKUPS = [
    # (rule, case, catalog, model, window, type, known)
    ("4.2", "by exact id", CATALOG, "own", 9_000, ModelType.OPENAI, True),
    ("4.2", "not by a part of it", CATALOG, "own-2", 7_000, ModelType.GOOGLE, False),
    ("4.2", "not in other letters", CATALOG, "Own", 7_000, ModelType.GOOGLE, False),
    ("4.2", "the built-in default", Catalog({}), "own", 256_000, ModelType.OPENAI, False),
]


@pytest.mark.parametrize(("catalog", "model", "window", "type_", "is_known"), marks(LOOKUPS))
def test_lookups(catalog: Catalog, model: str, window: int, type_: ModelType, is_known: bool) -> None:
    found = catalog.lookup(ModelRef("any", model))
    assert (found.context_window, found.type, found.known) == (window, type_, is_known)


PREPARED = Prepared(
    prepare_id="p", run_id="r", revision=31, boundary=11, rewrites=2, rows=9, covered_tokens=640, request_tokens=660,
    request_bytes=3_000, bounded=False, model=MODEL, window=1_000, ceiling=900,
)  # fmt: skip
ASKED = Cadence(boundaries=12, count=Reading(500, MODEL, 20), anchor=Anchor(500, 20, 400, MODEL))


def used(tokens: int, **fields: Any) -> Usage:
    return Usage(input_tokens=tokens, **fields)


READINGS = [
    # (rule, case, request, usage, appends only, media tokens, (counted, anchored, learned), warning)
    ("4.3", "a count of the request", PREPARED, used(680), True, 0, (True, True, True), None),
    ("4.3", "no usage yet", PREPARED, None, True, 0, (False, False, False), None),
    ("4.3", "zero is unknown", PREPARED, used(0), True, 0, (False, False, False), WarningCode.USAGE_MISSING),
    ("4.3", "missing is unknown", PREPARED, Usage(output_tokens=5), True, 0, (False, False, False),
     WarningCode.USAGE_MISSING),
    ("4.3", "over several calls", PREPARED, used(680, aggregated=True), True, 0, (False, False, False),
     WarningCode.USAGE_AGGREGATED),
    ("L1", "after a rewrite", PREPARED, used(680), False, 0, (False, False, True), None),
    ("L1", "of an older request than the anchor's", replace(PREPARED, revision=19), used(680), True, 0,
     (False, False, True), None),
    ("B4", "of a bounded request", replace(PREPARED, bounded=True), used(680), True, 0, (True, False, False), None),
    ("4.3", "of the window, over the ceiling", PREPARED, used(1_000), True, 0, (True, True, True), None),
    ("4.3", "above the window", PREPARED, used(1_001), True, 0, (False, False, False), WarningCode.USAGE_OUTLIER),
    ("4.3", "a token a byte", replace(PREPARED, request_bytes=700), used(700), True, 0, (True, True, True), None),
    ("4.3", "above a token a byte", replace(PREPARED, request_bytes=700), used(701), True, 0, (False, False, False),
     WarningCode.USAGE_OUTLIER),
    ("4.3", "with the media allowance", replace(PREPARED, request_bytes=700), used(750), True, 50, (True, True, True),
     None),
    ("4.3", "a quarter of the estimate", PREPARED, used(165), True, 0, (True, True, True), None),
    ("4.3", "under a quarter", PREPARED, used(164), True, 0, (False, False, False), WarningCode.USAGE_OUTLIER),
    ("4.5", "mostly media teach nothing", PREPARED, used(680), True, 67, (True, True, False), None),
]  # fmt: skip


@pytest.mark.parametrize(("prepared", "usage", "appends", "media", "expected", "warning"), marks(READINGS))
def test_readings(
    prepared: Prepared, usage: Usage | None, appends: bool, media: int, expected: tuple[bool, bool, bool],
    warning: WarningCode | None,
) -> None:  # fmt: skip
    record, verdict = readings.answered(
        ASKED, prepared, usage, revisions_only_appends=appends, estimate=660, media_tokens=media
    )
    assert (verdict.counted, verdict.anchored, verdict.learn) == expected
    assert verdict.warning is warning
    assert (record.count != ASKED.count, record.anchor != ASKED.anchor) == expected[:2]
    if usage is not None and usage.input_tokens:
        assert verdict.input_tokens == usage.input_tokens, "kept, whatever it is"


REFUSED = replace(ASKED, did_not_fit=DidNotFit("refused"), fit_attempts=1)
POLICY = Policy()


def started(trigger: Trigger) -> Callable[[Cadence], Cadence]:
    return lambda record: cadence.attempt_started(record, 11, trigger=trigger, paid=False, now=0.0)


def answered(prepared: Prepared) -> Callable[[Cadence], Cadence]:
    return lambda r: readings.answered(r, prepared, None, revisions_only_appends=True, estimate=660)[0]


CHANGES = [
    # (rule, case, change, did-not-fit fact stays, count stays, anchor stays)
    ("4.3", "a committed fold", lambda r: cadence.fold_committed(
        r, boundary=11, left_tokens=1, threshold=9, summary_tokens=1), False, False, False),
    ("4.3", "an edit", cadence.edited, False, False, False),
    ("4.3", "a restore", lambda r: cadence.restored(r, boundary=11, tokens=9), False, False, False),
    ("4.3", "a system row update", cadence.system_changed, True, False, False),
    ("4.4", "an attempt", started(Trigger.AUTOMATIC), False, True, True),
    ("4.4", "a forced attempt", started(Trigger.DID_NOT_FIT), False, True, True),
    ("4.4", "a manual attempt", started(Trigger.MANUAL), False, True, True),
    ("A2", "one ahead of need is none", started(Trigger.BACKGROUND), True, True, True),
    ("4.4", "nothing to fold", cadence.nothing_to_fold, False, True, True),
    ("4.4", "an attempt that fails had ended it", lambda r: cadence.attempt_failed(
        r, now=0.0, policy=POLICY, trigger=Trigger.AUTOMATIC), True, True, True),
    ("4.4", "a skip for the cooldown", lambda r: cadence.skipped(r, SkipReason.COOLDOWN)[0], True, True, True),
    ("4.4", "a skip for the deadline", lambda r: cadence.skipped(r, SkipReason.DEADLINE)[0], True, True, True),
    ("4.4", "a boundary", cadence.count_boundary, True, True, True),
    ("4.4", "an answer to the whole request", answered(PREPARED), False, True, True),
    ("B4", "an answer to a bounded request", answered(replace(PREPARED, bounded=True)), True, True, True),
    ("4.4", "an answer to an older request", answered(replace(PREPARED, boundary=10)), True, True, True),
]  # fmt: skip


@pytest.mark.parametrize(("change", "fact", "count", "anchor"), marks(CHANGES))
def test_what_keeps_and_drops_readings_and_the_fact(
    change: Callable[[Cadence], Cadence], fact: bool, count: bool, anchor: bool
) -> None:
    found = change(REFUSED)
    assert (found.did_not_fit is not None, found.count is not None, found.anchor is not None) == (fact, count, anchor)


KINDS = [
    # (rule, case, kind, whether it sets the fact)
    ("4.4", "over the context", RefusalKind.CONTEXT_EXCEEDED, True),
    ("4.4", "a body too large", RefusalKind.BODY_TOO_LARGE, True),
    ("4.4", "a rate limit", RefusalKind.RATE_LIMITED, False),
    ("4.4", "overloaded", RefusalKind.OVERLOADED, False),
    ("4.4", "a wrong key", RefusalKind.AUTHENTICATION, False),
    ("4.4", "a bad request", RefusalKind.INVALID_REQUEST, False),
    ("4.4", "another reason", RefusalKind.OTHER, False),
]


@pytest.mark.parametrize(("kind", "fact"), marks(KINDS))
def test_refusals_that_are_of_size(kind: RefusalKind, fact: bool) -> None:
    assert (cadence.refused(ASKED, kind).did_not_fit is not None) == fact


# Four turns, a prompt that is refused, and what the next run does with it; every row is about 150 tokens.
HISTORY = "U A U A U A U A"
FIT_SCRIPTS = [
    # (rule, case, script, list after it, trigger of the last fold)
    ("4.4", "continued: everything before the request folds", f"{HISTORY} >r1:U *r1 >r2", "K 9", True),
    ("4.4", "with a request of its own: the refused one too", f"{HISTORY} >r1:U *r1 >r2:U", "K 10", True),
    ("4.4", "pins stay", f"U! A {HISTORY} >r1:U *r1 >r2", "1 K 11", True),
    ("4.4", "in a continued run every round folds", "U@r1 >r1 A(c)@r1 R(c)@r1 >r1 A(d)@r1 R(d)@r1 >r1 *r1 >r2", "1 K",
     True),
    ("4.4", "it folds once", f"{HISTORY} >r1:U *r1 >r2 A@r2 >r2:U", "K 9 11 12", None),
    ("4.4", "nothing to fold", "U@r1 >r1 *r1 >r2", "1", None),
    ("4.4", "a manual fold ends it, and keeps its tail", f"{HISTORY} >r1:U *r1 # >r2", "K 3 4 5 6 7 8 9", None),
]  # fmt: skip


@pytest.mark.parametrize(("script", "listing", "forced"), marks(FIT_SCRIPTS))
def test_after_a_request_did_not_fit(client: Client, name: str, script: str, listing: str, forced: bool | None) -> None:
    host = Script(client, name, min_progress=0.0, background={"enabled": False}).play(script)
    assert host.listing() == listing
    folded = host.prepared.HasField("fold")
    assert folded == bool(forced)
    if folded:
        assert host.prepared.fold.trigger == compaction_pb2.TRIGGER_DID_NOT_FIT
    assert host.get().cadence.did_not_fit == ""
    assert host.verify().ok


def said(message: str, **fields: Any) -> bytes:
    return json.dumps({"error": {"message": message, **fields}}).encode()


CONTEXT, RATE, INVALID = RefusalKind.CONTEXT_EXCEEDED, RefusalKind.RATE_LIMITED, RefusalKind.INVALID_REQUEST
WORDINGS = [
    # (rule, case, status, body, kind, tokens, limit)
    ("4.4", "openai", 400, said("maximum context length is 128000 tokens. However, your messages resulted in 131204"
     " tokens", code="context_length_exceeded"), CONTEXT, 131_204, 128_000),
    ("4.4", "anthropic", 400, said("prompt is too long: 207791 tokens > 200000 maximum"), CONTEXT, 207_791, 200_000),
    ("4.4", "google", 400,
     said("The input token count (314175) exceeds the maximum number of tokens allowed (131072)."),
     CONTEXT, 314_175, 131_072),
    ("4.4", "bedrock", 400, said("Input is too long for requested model."), CONTEXT, None, None),
    ("4.4", "vllm", 400, said("This model's maximum context length is 65536 tokens. However, your request has 85605"
     " input tokens."), CONTEXT, 85_605, 65_536),
    ("4.4", "llama.cpp", 400, said("the request exceeds the available context size", n_prompt_tokens=13_392,
     n_ctx=8_192), CONTEXT, 13_392, 8_192),
    ("4.4", "ollama", 400, b'{"error": "prompt too long; exceeded max context length by 812 tokens"}', CONTEXT, None,
     None),
    ("4.4", "lm studio", 400, said("The number of tokens to keep from the initial prompt is greater than the context"
     " length (n_keep: 13055>= n_ctx: 4096)"), CONTEXT, 13_055, 4_096),
    ("4.4", "openrouter", 400, said("Provider returned error", metadata={"raw": said("prompt is too long: 9 tokens > 8"
     " maximum").decode()}), CONTEXT, 9, 8),
    ("4.4", "http 413", 413, b"<html>413 Request Entity Too Large</html>", RefusalKind.BODY_TOO_LARGE, None, None),
    ("4.4", "a rate limit in words of size", 413, said("Request too large on tokens per minute (TPM): Limit 6000"),
     RATE, None, None),
    ("4.4", "a rate limit whatever its words", 429, said("prompt is too long"), RATE, None, None),
    ("4.4", "too much output is none of the input", 400, said("max_tokens: 100000 > 8192, which is the maximum allowed"
     " number of output tokens"), INVALID, None, None),
    ("4.4", "an image too large", 400, said("image exceeds 5 MB maximum: 6096280 bytes > 5242880 bytes"), INVALID, None,
     None),
    ("4.4", "what a tool said, repeated", 400, b'{"error": {"message": "bad"}, "input": "prompt is too long"}', INVALID,
     None, None),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "kind", "tokens", "limit"), marks(WORDINGS))
def test_wordings(status: int, body: bytes, kind: RefusalKind, tokens: int | None, limit: int | None) -> None:
    found = classify(status, body)
    assert (found.kind, found.named_tokens, found.named_limit) == (kind, tokens, limit)


OPENAI, ANTHROPIC, GOOGLE = ModelType.OPENAI, ModelType.ANTHROPIC, ModelType.GOOGLE
USAGES = [
    # (rule, case, type, usage, input tokens)
    ("4.3", "openai: the cached ones are inside", OPENAI,
     {"prompt_tokens": 900, "prompt_tokens_details": {"cached_tokens": 800}}, 900),
    ("4.3", "anthropic: beside", ANTHROPIC, {"input_tokens": 206, "cache_read_input_tokens": 98_432}, 98_638),
    ("4.3", "google: inside", GOOGLE, {"promptTokenCount": 900, "cachedContentTokenCount": 800}, 900),
    ("4.3", "bedrock: beside", ANTHROPIC, {"inputTokens": 100, "cacheReadInputTokens": 800}, 900),
    ("4.3", "llama.cpp: evaluated and reused", OPENAI, {"prompt_n": 100, "cache_n": 800}, 900),
    ("4.3", "ollama", OPENAI, {"prompt_eval_count": 900}, 900),
    ("4.3", "by the names, whatever the type", ANTHROPIC,
     {"input_tokens": 900, "input_tokens_details": {"cached_tokens": 800}}, 900),
    ("4.3", "a part larger than the whole is beside it", OPENAI,
     {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 800}}, 900),
    ("4.3", "nothing that is a count", OPENAI, {"prompt_tokens": -1}, None),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "usage", "tokens"), marks(USAGES))
def test_usages(type_: ModelType, usage: dict[str, Any], tokens: int | None) -> None:
    assert normalize(type_, usage).input_tokens == tokens


def raw_tokens(*blocks: Any, encoding: str | None = "o200k_base") -> int:
    return measure_rows([encode_body(UserRow(blocks))], encoding)[0][0]


DATA = b"\x89PNG" * 3_000
BASE64 = 16_000
ESTIMATES = [
    # (rule, case, row, encoding, raw tokens)
    ("4.5", "a row", (), "o200k_base", 4),
    ("4.5", "text by its vocabulary", (TextBlock("hello world"),), "o200k_base", 4 + 2),
    ("4.5", "at least one for a block", (TextBlock("a"), TextBlock("b")), None, 4 + 2),
    ("4.5", "nothing for an empty one", (TextBlock(""),), None, 4),
    ("4.5", "an image", (ImageBlock(mime_type="image/png", data=b"x"),), None, 4 + 1_600),
    ("4.5", "audio: base64 by four", (AudioBlock(mime_type="audio/wav", data=DATA),), None, 4 + BASE64 // 4),
    ("4.5", "a document: base64 by four", (DocumentBlock(mime_type="application/pdf", data=DATA),), None,
     4 + BASE64 // 4),
    ("4.5", "video: base64 by four", (VideoBlock(mime_type="video/mp4", data=DATA),), None, 4 + BASE64 // 4),
    ("4.5", "or three hundred a second", (VideoBlock(mime_type="video/mp4", data=DATA, duration_seconds=60.0),), None,
     4 + 18_000),
]  # fmt: skip


@pytest.mark.parametrize(("blocks", "encoding", "tokens"), marks(ESTIMATES))
def test_estimates(blocks: tuple[Any, ...], encoding: str | None, tokens: int) -> None:
    assert raw_tokens(*blocks, encoding=encoding) == tokens


def test_4_5_base64_inside_a_text_counts_as_the_text_it_is() -> None:
    """XE11: in a text block nothing says that it is an image."""
    text = "data:image/png;base64," + "iVBORw0KGgo" * 2_000
    assert raw_tokens(TextBlock(text)) == 4 + count_tokens(text, "o200k_base")
    assert raw_tokens(TextBlock(text), encoding=None) == 4 + weighted_tokens(text)
    assert weighted_tokens(text) > len(text) // 4


FACTORS = [
    # (rule, case, readings of a raw estimate of 1000, bounds, factor as it is used)
    ("4.5", "none yet", [], (0.5, 2.5), 1.0),
    ("4.5", "the first as it is", [1_300], (0.5, 2.5), 1.3),
    ("4.5", "a later one by its weight", [1_000, 2_000], (0.5, 2.5), 1.3),
    ("4.5", "bounded above", [4_000], (0.5, 2.5), 2.5),
    ("4.5", "bounded below", [260], (0.5, 2.5), 0.5),
    ("4.5", "by another policy", [4_000], (0.9, 1.1), 1.1),
    ("4.5", "zero is no reading", [1_300, 0], (0.5, 2.5), 1.3),
]


@pytest.mark.parametrize(("readings", "bounds", "value"), marks(FACTORS))
def test_the_learned_factor(readings: list[int], bounds: tuple[float, float], value: float) -> None:
    learned = Factor(MODEL)
    for reported in readings:
        learned = factor.learn(learned, 1_000, reported)
    policy = Policy(estimate=Estimate(*bounds))
    assert factor.within(learned, policy).value == pytest.approx(value)
