"""What the demo's tools print: listings, tables, logs, test runs, all of one incident.

A printer is called with the incident, the item that the story repeats over, the seeded random, and its words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from foldline.demo.incident import CAP, Incident

SOURCES = {
    "ingest": '''"""HTTP entry for provider webhooks: verify, append to the stream, answer 200."""

MAX_SKEW_SECONDS = 300


def verify(body: bytes, header: str, now: float) -> bool:
    timestamp, signature = parse_signature(header)
    if abs(now - timestamp) > MAX_SKEW_SECONDS:
        return False
    expected = hmac.new(settings.webhook_secret, b"%d." % timestamp + body, sha256).hexdigest()
    return hmac.compare_digest(expected, signature)


async def handle(request):
    body = await request.body()
    if not verify(body, request.headers["Cardnet-Signature"], request.now):
        return Response(status=400)
    await publish(settings.stream, parse_event(body))
    return Response(status=200)
''',
    "worker": '''"""Reads the stream in a consumer group and books events in the ledger."""

GROUP, BATCH = "ledger", 200


async def run(redis, ledger):
    while True:
        for entry_id, fields in await redis.xreadgroup(GROUP, consumer_name(), {settings.stream: ">"}, count=BATCH):
            try:
                await ledger.book(decode(fields))
            except LedgerUnavailable:
                await asyncio.sleep(backoff())
                continue
            await redis.xack(settings.stream, GROUP, entry_id)
''',
    "stream": f'''"""Append to the event stream."""


async def publish(stream: str, event: Event) -> str:
    # Bounded so that a stuck consumer cannot fill the memory of the shared Redis.
    return await redis().xadd(stream, encode(event), maxlen={CAP}, approximate=True)
''',
}


CASES = (
    "an_empty_body", "a_repeated_event", "an_old_timestamp", "a_full_stream", "a_slow_ledger", "a_lost_connection",
    "two_consumers", "a_large_payload", "an_unknown_type", "a_refund", "a_partial_batch", "a_restart", "a_late_ack",
)  # fmt: skip


def _table(header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    cells = [header, *[tuple(str(c) for c in row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [" | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    total = f"({len(cells) - 1} rows)" if len(cells) > 2 else "(1 row)"
    return "\n".join([lines[0], "-+-".join("-" * w for w in widths), *lines[1:], total])


def source(world: Incident, it: Any, random: Random, name: str) -> str:
    return SOURCES[name]


def provider_page(world: Incident, it: Any, random: Random) -> str:
    sample = [{"id": f"evt_{random.getrandbits(56):014x}", "amount": random.randrange(300, 90_000)} for _ in range(9)]
    return json.dumps({"merchant": it.id, "delivered": it.sent, "acknowledged": it.sent, "data": sample}, indent=1)


def ledger_count(world: Incident, it: Any, random: Random) -> str:
    row = (it.id, it.sent - it.lost, "2026-03-02 00:00:03+00", "2026-03-02 23:59:58+00")
    return _table(("merchant_id", "booked", "first_at", "last_at"), [row])


def reconciled(world: Incident, it: Any, random: Random) -> str:
    provider = it.sent + it.backlog
    row = (it.id, provider, provider - it.refunded, it.refunded)
    return _table(("merchant_id", "provider", "ledger", "difference"), [row])


def clock(world: Incident, it: Any, random: Random, index: str) -> str:
    skew = world.pods[int(index)].skew_ms / 1000
    return (
        f"Reference ID    : A9FEA97B (169.254.169.123)\nStratum         : 4\n"
        f"System time     : {skew:.6f} seconds fast of NTP time\nRMS offset      : {skew / 1.9:.6f} seconds"
    )


def pod_states(world: Incident, it: Any, random: Random) -> str:
    rows = ((p.name, p.zone, "Running", 0, p.accepted) for p in world.pods)
    return _table(("pod", "zone", "status", "restarts", "accepted_since_midnight"), rows)


def pod_log(world: Incident, it: Any, random: Random, index: str) -> str:
    pod = it[int(index)]
    out = []
    second = 0
    for _ in range(64):
        second += random.randrange(1, 54)
        stamp = f"2026-03-03T08:{second // 60 % 60:02d}:{second % 60:02d}.{random.randrange(1000):03d}Z"
        event = f"evt_{random.getrandbits(48):012x}"
        if random.random() < pod.timeouts / 700:
            out.append(f"{stamp} WARN  upstream timeout after 30000 ms event={event} attempt=1")
        elif random.random() < 0.06:
            out.append(f"{stamp} INFO  duplicate delivery ignored event={event} attempt=2")
        else:
            size, took = random.randrange(600, 4200), random.uniform(0.4, 3.9)
            out.append(f"{stamp} INFO  accepted event={event} bytes={size} publish_ms={took:.1f}")
    return "\n".join([f"== {pod.name} ({pod.zone})", *out])


def load_test(world: Incident, it: Any, random: Random, p99: str) -> str:
    def row(second: int) -> tuple[object, ...]:
        slowest = round(int(p99) * random.uniform(0.95, 1.04))
        return f"{second}s", random.randrange(210, 260), random.randrange(11, 20), slowest

    return _table(("elapsed", "req_per_s", "p50_ms", "p99_ms"), (row(second) for second in range(30, 361, 30)))


def deploys(world: Incident, it: Any, random: Random) -> str:
    return _table(("release", "deployed_at", "change"), [
        ("r1184", "2026-02-17 12:05", "ledger: batches of 200"), ("r1185", "2026-02-19 15:31", "dependency updates"),
        ("r1186", "2026-02-23 09:48", "ingest: structured logs"), ("r1187", "2026-02-24 13:40", "stream: cap memory"),
        ("r1188", "2026-02-27 14:02", "dashboard labels"), ("r1189", "2026-03-01 08:55", "worker: backoff jitter"),
    ])  # fmt: skip


def timeline(world: Incident, it: Any, random: Random) -> str:
    lost = world.lost_by_minute()
    return _table(("minute_utc", "delivered", "missing"), ((m, events, lost.get(m, 0)) for m, events in world.burst))


def stream_info(world: Incident, it: Any, random: Random, length: str, lag: str) -> str:
    return (
        f'1) "length"\n2) (integer) {length}\n3) "max-deleted-entry-id"\n4) "1772417471223-17"\n'
        f'5) "entries-added"\n6) (integer) 48211907\n7) "lag"\n8) (integer) {lag}'
    )


def suite(world: Incident, it: Any, random: Random, total: str, failing: str = "", *why: str) -> str:
    lines = [
        f"tests/test_{module}.py::test_{verb}_{case} PASSED"
        for module, verb in (("ingest", "accepts"), ("stream", "keeps"), ("worker", "books"), ("replay", "resumes"))
        for case in random.sample(CASES, 9)
    ]
    verdict = f"{total} passed"
    if failing:
        reason = " ".join(why) or f"AssertionError: {random.randrange(3900, 4700)} entries were never delivered"
        place = "test_worker" if "trim" in failing else "test_stream"
        lines.append(f"FAILED tests/{place}.py::{failing} - {reason}")
        verdict = f"1 failed, {int(total) - 1} passed"
    return "\n".join([*lines, f"==== {verdict} in {random.uniform(7, 13):.2f}s ===="])


def canary(world: Incident, it: Any, random: Random) -> str:
    return json.dumps({
        "hour": it["hour"], "release": "r1190", "accepted": random.randrange(24_000, 31_000),
        "booking_lag_p99_ms": random.randrange(180, 420), "stream_length_max": random.randrange(700, 3_900), "lost": 0,
    }, indent=1)  # fmt: skip


def replay_plan(world: Incident, it: Any, random: Random) -> str:
    return _table(("merchant", "to_replay"), ((m.id, m.backlog) for m in world.merchants))


def replay(world: Incident, it: Any, random: Random, which: str = "") -> str:
    merchant = world.merchants[int(which)] if which.isdigit() else it
    mode = "dry run, nothing written" if which == "dry" else "committed"
    booked = merchant.backlog - merchant.refunded
    lines = [
        f"page {page:3d} first=evt_{random.getrandbits(48):012x} days={random.randrange(1, 10)} events={min(20, left)}"
        for page, left in enumerate(range(merchant.backlog, 0, -20), 1)
    ]
    return "\n".join([
        *lines,
        f"replay {merchant.id}: fetched {merchant.backlog}, booked {booked}, skipped {merchant.refunded} refunded "
        f"({mode}) in {merchant.backlog / 40:.1f} s at 40.0 req/s",
    ])  # fmt: skip


def still_missing(world: Incident, it: Any, random: Random) -> str:
    left = sum(m.backlog for m in world.merchants[7:]) + sum(m.refunded for m in world.merchants[:7])
    return f"count\n-----\n{left}\n(1 row)"


PRINTERS: dict[str, Callable[..., str]] = {
    f.__name__: f
    for f in (
        canary, clock, deploys, ledger_count, load_test, pod_log, pod_states, provider_page, reconciled, replay,
        replay_plan, source, still_missing, stream_info, suite, timeline,
    )
}  # fmt: skip
