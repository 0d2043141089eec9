"""The facts behind the demo: a payment gateway that loses webhooks. Everything the tools print is drawn from here."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

CAP = 10_000
_SCRIPTED = {
    "incident": "INC-20417", "first_lost": "evt_8FQ2x7LmT0", "stream": "cardnet.events", "commit": "4be19d7",
    "release": "r1187", "fix": "c02f6ae", "replay_rate": 40, "cap": CAP,
}  # fmt: skip
_SERVICES = (
    ("payouts", "", 310), ("disputes", ", maxlen=50_000, approximate=True", 1_120),
    ("notifications", ", maxlen=5_000, approximate=True", 2_480), ("reports", "", 90),
    ("onboarding", ", maxlen=10_000, approximate=True", 640), ("fx-rates", ", minid=cutoff(hours=1)", 8_800),
)  # fmt: skip
_RELEASES = (
    ("r1184", "2026-02-18", 0), ("r1185", "2026-02-20", 0), ("r1186", "2026-02-24 10:00", 0),
    ("r1187", "2026-02-25", 431), ("r1188", "2026-02-28", 512), ("r1189", "2026-03-01", 498),
)  # fmt: skip
_REVIEWS = (
    ("Point 1.", "paygate/worker.py", "trim at most once every 60 s, measured on the monotonic clock"),
    ("Point 2.", "paygate/config.py", "STREAM_RETENTION = timedelta(hours=24)"),
    ("Point 3, the counter.", "paygate/worker.py", "stream_trimmed_unread: entries trimmed past the oldest pending"),
    ("And its test.", "tests/test_worker.py", "test_trimmed_unread_counts_zero, test_trim_runs_once_a_minute"),
)
_MERCHANT_WORDS = ("", "Next merchant.", "Still the same picture: small, everywhere.", "One more.")
_CANARY_WORDS = (
    "Nothing lost in this hour, lag below half a second.", "Clean as well; the stream stays under 4 000 entries.",
    "No loss, and no rise in memory.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Merchant:
    """``sent`` events by the provider's count on the first day, of which ``lost`` never reached the ledger."""

    id: str
    sent: int
    lost: int
    refunded: int
    backlog: int
    words: str


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    zone: str
    skew_ms: float
    accepted: int
    timeouts: int


@dataclass(frozen=True, slots=True)
class Incident:
    """One drawing of the facts; the same seed gives the same incident.

    Attributes:
        burst: (minute of the night, delivered events) of the settlement.
        facts: every name the story may use, the lists that it repeats over included.
    """

    merchants: tuple[Merchant, ...]
    pods: tuple[Pod, ...]
    burst: tuple[tuple[str, int], ...]
    facts: dict[str, Any] = field(default_factory=dict)

    def lost_by_minute(self) -> dict[str, int]:
        """Where the lost events of the first day lie: in the minutes that brought more than the stream holds."""
        over = {minute: events - CAP for minute, events in self.burst if events > CAP}
        total = sum(m.lost for m in self.merchants)
        lost = {minute: total * n // sum(over.values()) for minute, n in over.items()}
        lost[max(over, key=over.__getitem__)] += total - sum(lost.values())
        return lost


def draw(seed: int) -> Incident:
    random = Random(seed)
    merchants = []
    for index, number in enumerate(random.sample(range(1020, 9800), 12)):
        sent = random.randrange(2_400, 21_000)
        lost = max(3, round(sent * random.uniform(0.0022, 0.0061)))
        words, refunded = _MERCHANT_WORDS[index % 4], {2: 3, 7: 2}.get(index, 0)
        merchants.append(Merchant(f"mch_{number}", sent, lost, refunded, lost * random.randrange(4, 8), words))
    pods = []
    for index in range(8):
        suffix = "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
        zone, skew = f"eu-central-1{'abc'[index % 3]}", round(random.uniform(2.0, 38.0), 1)
        accepted, timeouts = random.randrange(18_000, 24_000), random.randrange(9, 44)
        pods.append(Pod(f"webhook-ingest-7c9d54-{suffix}", zone, skew, accepted, timeouts))
    rise = (max(0.0, 1 - abs(minute - 9) / 6) * random.uniform(0.93, 1.04) for minute in range(25))
    burst = tuple((f"02:{5 + minute:02d}", int(900 + 13_700 * r)) for minute, r in enumerate(rise))
    incident = Incident(tuple(merchants), tuple(pods), burst)
    incident.facts.update(_SCRIPTED, **_sums(incident), **_items(incident, random))
    return incident


def _sums(incident: Incident) -> dict[str, Any]:
    merchants = incident.merchants
    sent, lost = sum(m.sent for m in merchants), sum(m.lost for m in merchants)
    backlog, refunded = sum(m.backlog for m in merchants), sum(m.refunded for m in merchants)
    return {
        "sent": sent, "lost": lost, "booked": sent - lost, "share": f"{100 * lost / sent:.2f} %",
        "worst_skew": max(p.skew_ms for p in incident.pods[:6]), "timeouts": sum(p.timeouts for p in incident.pods),
        "peak": max(e for _, e in incident.burst), "night": sum(e for _, e in incident.burst),
        "backlog": backlog, "refunded": refunded, "recovered": backlog - refunded,
    }  # fmt: skip


def _items(incident: Incident, random: Random) -> dict[str, Any]:
    bursts = []
    for size in (6_000, 9_500, 10_500, 12_000, 14_600):
        lost = max(0, size - CAP - random.randrange(20, 90))
        bursts.append({"size": size, "lost": lost, "kept": size - lost})
    return {
        "merchants": incident.merchants, "pods": incident.pods,
        "first_half": incident.merchants[:6], "second_half": incident.merchants[7:],
        "pod_pairs": [incident.pods[i : i + 2] for i in range(0, 8, 2)],
        "watch_hours": [
            {"hour": h, "before": h - 1, "lost": random.randrange(19, 29), "timeouts": random.randrange(4)}
            for h in range(11, 17)
        ],
        "releases": [{"name": n, "day": d, "lost": c} for n, d, c in _RELEASES],
        "services": [{"name": n, "bound": b, "top": t} for n, b, t in _SERVICES],
        "reviews": [{"words": w, "path": p, "change": c} for w, p, c in _REVIEWS],
        "bursts": bursts, "staging": [{"size": s, "left": random.randrange(40, 400)} for s in (10_500, 14_600, 30_000)],
        "canary_hours": [{"hour": h, "words": _CANARY_WORDS[h % 3]} for h in range(11, 20)],
    }  # fmt: skip
