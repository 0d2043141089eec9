"""CheckPressure and PlanCompaction say what would happen; a manual fold leaves room for all that is sent."""

from __future__ import annotations

import pytest
from foldline.v1 import compaction_pb2, compaction_service_pb2

from tests.integration.host import SMALL, Host
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refused

LONG = "The queue drops messages when the consumer restarts before it has acknowledged them. " * 10
Shape = compaction_service_pb2.RequestShape


def check(host: Host, **policy: object) -> compaction_service_pb2.CheckPressureResponse:
    """What the next boundary would do, with nothing but the rows."""
    return host.client.compaction.CheckPressure(
        compaction_service_pb2.CheckPressureRequest(session_id=host.id, shape=Shape(model=SMALL), override=policy)
    )


def grown(client: Client, name: str, turns: int, **policy: object) -> Host:
    host = Host(client, name, **policy)
    for n in range(turns):
        host.append(user(f"{n} {LONG}"), assistant(f"{n} {LONG}"))
    return host


FORESEEN = [
    # (rule, case, turns, policy, whether a fold is due, why not)
    ("P3", "history at T is due", 12, {}, True, "UNSPECIFIED"),
    ("P3", "nothing trips", 2, {}, False, "UNSPECIFIED"),
    ("C4", "a plan that saves too little is foreseen", 12, {"min_progress": 0.99}, False, "NO_PROGRESS"),
    ("C8", "what the record keeps from folding is named", 12, {"auto_compact": False}, False, "UNSPECIFIED"),
]


@pytest.mark.parametrize(
    ("rule", "case", "turns", "policy", "due", "skip"), FORESEEN, ids=[f"{f[0]}-{f[1]}" for f in FORESEEN]
)
def test_what_check_pressure_foresees_is_what_prepare_does(
    client: Client, name: str, rule: str, case: str, turns: int, policy: dict[str, object], due: bool, skip: str
) -> None:
    host = grown(client, name, turns, output_reserve_tokens=100, **policy)
    host.append(user("go"))
    seen = check(host)
    assert seen.fold_due == due
    assert seen.skip == compaction_pb2.SkipReason.Value(f"SKIP_REASON_{skip}")
    prepared = host.prepare("r1")
    assert prepared.HasField("fold") == due
    assert prepared.skip == seen.skip


def test_f4_nothing_to_fold_is_foreseen(client: Client, name: str) -> None:
    """F4, C7: one round that is over the window, and nothing before its run."""
    host = Host(client, name)
    prepared = host.prepare("r1", user("Read all of it."))
    host.record("r1", host.answer(prepared, calls("c1")))
    host.append(result("c1", LONG * 25), run_id="r1")
    seen = check(host)
    assert not seen.fold_due
    assert seen.skip == compaction_pb2.SKIP_REASON_NOTHING_TO_FOLD
    assert host.prepare("r1").skip == seen.skip
    plan = client.compaction.PlanCompaction(compaction_service_pb2.PlanCompactionRequest(session_id=name))
    assert not plan.HasField("plan")


@pytest.mark.parametrize("told", ["with the call", "by the last request"])
def test_f2_a_manual_fold_leaves_room_for_what_is_sent_beside_the_rows(client: Client, name: str, told: str) -> None:
    """F2, P7: 1 000 tokens of tools leave 600 of the 1 600 that a rebuilt request may have."""
    host = grown(client, name, 14, auto_compact=False, retention={"messages": 1})
    before = host.compact()
    assert 600 < before.tokens_after < 1_600
    shape = Shape(model=SMALL, overhead_tokens=1_000, overhead_bytes=4_000)
    other = grown(client, f"{name}-tools", 14, auto_compact=False, retention={"messages": 1})
    if told == "with the call":
        record = other.compact(shape=shape)
    else:
        prepared = other.prepare("r1", user("go"), shape=shape)
        done = {"finish": compaction_pb2.RUN_OUTCOME_COMPLETED}
        other.record("r1", other.answer(prepared, assistant("done"), **done))
        planned = client.compaction.PlanCompaction(
            compaction_service_pb2.PlanCompactionRequest(session_id=other.id)
        ).plan
        record = other.compact()
        assert [(r.first, r.last) for r in planned.discarded] == [(r.first, r.last) for r in record.discarded]
    assert record.tokens_after < 600


def test_p7_tools_of_an_unknown_digest_are_asked_for(client: Client, name: str) -> None:
    host = grown(client, name, 4)
    request = compaction_service_pb2.CompactSessionRequest(session_id=name, shape=Shape(tools_digest="0" * 64))
    assert refused(client.compaction.CompactSession, request).reason == "TOOLS_UNKNOWN"
    assert len(host.active()) == 8
