"""A server with a provider that compacts by itself, and hosts whose requests it takes (§12)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foldline.v1 import compaction_pb2, compaction_service_pb2, event_pb2, model_pb2, policy_pb2, row_pb2, session_pb2

from tests.integration.host import Host
from tests.support.providers import Does, FakeProvider, Received
from tests.support.requests import assistant, raw, user
from tests.support.server import Client, running_server

LINE = ("The parser drops the trailing comma of `config/app.toml` and line {n} then fails with E{n}. " * 4).strip()
KEY = "sk-live0123456789abcdefghijkl"
PRICES = {"input": 2.0, "cached_input": 0.5, "output": 8.0, "currency": "USD"}
OPENAI = model_pb2.ModelRef(provider="openai", model="small")
CLAUDE = model_pb2.ModelRef(provider="claude", model="opus")
EDITED = model_pb2.ModelRef(provider="edited", model="vast")
LOCAL = model_pb2.ModelRef(provider="local", model="small")
WAYS = {
    "openai": (OPENAI, row_pb2.FORMAT_OPENAI_RESPONSES, "openai_compact"),
    "claude": (CLAUDE, row_pb2.FORMAT_ANTHROPIC_MESSAGES, "anthropic_parameter"),
    "edited": (EDITED, row_pb2.FORMAT_ANTHROPIC_MESSAGES, "anthropic_edit"),
}
"""By provider: its model, the format of its requests, and the fake's name for its compaction."""
NATIVE = policy_pb2.SUMMARY_SOURCE_POLICY_NATIVE
_numbers = itertools.count(1)


@dataclass
class World:
    """A server, its providers, and the clock it lives by."""

    client: Client
    fake: FakeProvider
    folder: Path
    now: float = 1_767_225_600.0

    @property
    def compactions(self) -> list[Received]:
        apis = {api for _, _, api in WAYS.values()}
        return [r for r in self.fake.received if r.api in apis]

    def fresh(self) -> None:
        self.fake.script.clear()
        self.fake.received.clear()
        self.fake.probes.clear()
        self.fake.otherwise = self.fake.models = Does()


def settings(folder: Path, fake: FakeProvider) -> dict[str, str]:
    catalog, key = folder / "models.json", folder / "key"
    small = {"context_window": 8000, "type": "openai", "encoding": "o200k_base", "prices": PRICES}
    claude = {"type": "anthropic", "prices": PRICES}
    catalog.write_text(
        json.dumps({
            "small": small, "opus": {**claude, "context_window": 8000}, "vast": {**claude, "context_window": 200_000},
        })
    )  # fmt: skip
    key.write_text(KEY)
    made = {"catalog": str(catalog)}
    for name, kind, base in (
        ("openai", "openai_responses", "openai_responses"), ("claude", "anthropic", "anthropic"),
        ("edited", "anthropic", "anthropic"),
    ):  # fmt: skip
        made |= {
            f"providers.{name}.type": kind, f"providers.{name}.base_url": fake.base_url(base),
            f"providers.{name}.api_key_file": str(key),
        }  # fmt: skip
    return made | {"providers.edited.compaction": "compact-2026-01-12", "providers.openai.model": "small"}


@contextmanager
def world_of(folder: Path, more: Mapping[str, Any] | None = None) -> Iterator[World]:
    with FakeProvider() as fake:
        made = World(None, fake, folder)  # type: ignore[arg-type]
        with running_server(folder, settings(folder, fake) | dict(more or {}), clock=lambda: made.now) as made.client:
            yield made


class NativeHost(Host):
    """A host of one model, whose requests are rendered in its provider's format."""

    def __init__(self, client: Client, way: str = "openai", **policy: Any) -> None:
        self.model, self.format, self.api = WAYS[way]
        summary = {"source": NATIVE, "retries": 0, **policy.pop("summary", {})}
        policy.setdefault("output_reserve_tokens", 100)
        policy.setdefault("native", {"enabled": True})
        policy.setdefault("min_progress", 0.0)
        super().__init__(client, f"native-{next(_numbers)}", summary=policy_pb2.SummaryPolicy(**summary), **policy)

    def ask(
        self, run_id: str, *messages: dict[str, Any], model: model_pb2.ModelRef | None = None, **fields: Any
    ) -> compaction_service_pb2.PrepareRequestResponse:
        """PrepareRequest, rendered whole."""
        fields.setdefault("format", self.format)
        return self.prepare(run_id, *messages, model=model, reply=compaction_pb2.REPLY_MODE_WHOLE, **fields)

    def prepare(
        self, run_id: str, *messages: dict[str, Any], **fields: Any
    ) -> compaction_service_pb2.PrepareRequestResponse:
        model = fields.pop("model", None) or self.model
        fields.setdefault("shape", compaction_service_pb2.RequestShape()).model.CopyFrom(model)
        return self._sent(run_id, *messages, **fields)

    def _sent(
        self, run_id: str, *messages: dict[str, Any], **fields: Any
    ) -> compaction_service_pb2.PrepareRequestResponse:
        fields.setdefault("reply", compaction_pb2.REPLY_MODE_EDITS)
        request = compaction_service_pb2.PrepareRequestRequest(
            session_id=self.id, run_id=run_id, known_revision=self.revision, **fields
        )
        if messages:
            request.append.CopyFrom(raw(*messages))
        response = self.client.compaction.PrepareRequest(request)
        if request.reply == compaction_pb2.REPLY_MODE_EDITS:
            self._apply(response)
        return response

    def filled(self, turns: int = 12) -> NativeHost:
        """Closed turns of about 190 tokens each."""
        for n in range(turns):
            self.append(user(LINE.format(n=n)), assistant(LINE.format(n=n + 500)), run_id=f"old-{n}")
        return self

    def long(self) -> NativeHost:
        """Enough for the trigger of the edit: about 80 000 tokens."""
        for n in range(40):
            self.append(user(LINE.format(n=n) * 11), assistant(LINE.format(n=n + 500) * 11), run_id=f"old-{n}")
        return self

    def ready(self) -> NativeHost:
        return self.long() if self.model == EDITED else self.filled()

    def fold(self, **fields: Any) -> compaction_pb2.CompactionRecord:
        return self.compact(shape=compaction_service_pb2.RequestShape(model=self.model), **fields)

    def item(self) -> row_pb2.ProviderCompactionRow:
        """The item as a host gets it with the rows of a request, in a run of its own that asks nothing."""
        run_id = f"look-{next(_numbers)}"
        request = compaction_service_pb2.PrepareRequestRequest(
            session_id=self.id, run_id=run_id, reply=compaction_pb2.REPLY_MODE_WHOLE, supersede_open_run=True
        )
        request.shape.model.CopyFrom(self.model)
        rows = self.client.compaction.PrepareRequest(request).rows.rows
        self.client.compaction.FinishRun(
            compaction_service_pb2.FinishRunRequest(
                session_id=self.id, run_id=run_id, outcome=compaction_pb2.RUN_OUTCOME_COMPLETED
            )
        )
        return next(r.provider_compaction for r in rows if r.HasField("provider_compaction"))

    def kinds(self) -> list[str]:
        return [str(r.WhichOneof("body")) for r in self.active()]

    def events_of(self, kind: str) -> list[event_pb2.Event]:
        return [e for e in self.events() if e.kind == event_pb2.EventKind.Value(f"EVENT_KIND_{kind}")]

    def ended_once(self) -> bool:
        """Every start has one end (§13)."""
        starts = [e.fold_id for e in self.events_of("COMPACTION_STARTED")]
        ends = [e.fold_id for kind in ("COMPLETED", "FAILED") for e in self.events_of(f"COMPACTION_{kind}")]
        return bool(starts) and sorted(starts) == sorted(ends) and len(set(ends)) == len(ends)

    def used(self, source: str = "NATIVE") -> session_pb2.SourceUsage:
        wanted = session_pb2.UsageSource.Value(f"USAGE_SOURCE_{source}")
        return next((u for u in self.get().totals.usage if u.source == wanted), session_pb2.SourceUsage())

    def sound(self) -> bool:
        return bool(self.verify().ok)


def source_of(record: compaction_pb2.CompactionRecord) -> str:
    return row_pb2.SummarySource.Name(record.summary_source).removeprefix("SUMMARY_SOURCE_")
