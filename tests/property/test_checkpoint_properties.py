"""Sessions with trims, folds, edits, restores and late results in any order: nothing is lost, nothing doubled (K2)."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from foldline.v1 import compaction_pb2, memory_service_pb2, model_pb2, policy_pb2, row_pb2, session_service_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.test_checkpoints import Agent, told
from tests.integration.test_lineage import restore
from tests.support.requests import assistant, calls, result, user
from tests.support.server import Client, refusal_of, running_server
from tests.validity import anthropic_faults, google_faults, openai_chat_faults, openai_responses_faults

IDS = ("a", "b", "c", "d")
PROVIDERS: dict[Any, Callable[[Any], list[str]]] = {
    row_pb2.FORMAT_OPENAI_CHAT: openai_chat_faults,
    row_pb2.FORMAT_ANTHROPIC_MESSAGES: anthropic_faults,
    row_pb2.FORMAT_OPENAI_RESPONSES: openai_responses_faults,
    row_pb2.FORMAT_GOOGLE_GENAI: google_faults,
}
EXPECTED = {
    "TRIM_COUNT_TOO_LARGE", "NOTHING_TO_FOLD", "EDIT_SPLITS_UNIT", "SUMMARY_ROW_REFUSED", "DUPLICATE_TOOL_RESULT",
    "UNKNOWN_TOOL_CALL", "FIELD_VALIDATION", "RUN_NOT_OPEN", "RUN_ALREADY_OPEN", "PREPARE_NOT_FOUND",
}  # fmt: skip
_names = itertools.count()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder: Path = tmp_path_factory.mktemp("server")
    catalog = folder / "models.json"
    catalog.write_text(json.dumps({"small": {"context_window": 4000, "type": "openai", "encoding": "o200k_base"}}))
    with running_server(folder, {"catalog": str(catalog), "store.synchronous": "NORMAL"}) as client:
        yield client


def says(seed: int) -> str:
    return f"word-{seed} " + "is what was said of it then. " * 8


class Player(Agent):
    """Plays steps; what is refused must be refused for a reason that a host can bring about."""

    def __init__(self, client: Client) -> None:
        super().__init__(
            client, f"trims-{next(_names)}", auto_compact=False, min_progress=0.0,
            retention=policy_pb2.RetentionPolicy(turns=1, messages=1),
        )  # fmt: skip
        self.runs = 0
        self.prepared: Any = None
        self.trimmed = self.served = 0

    def step(self, kind: str, seed: int) -> None:
        try:
            getattr(self, kind)(seed)
        except grpc.RpcError as error:
            refusal = refusal_of(error)
            assert refusal.reason in EXPECTED, (kind, refusal)

    def talk(self, seed: int) -> None:
        self.append(user(says(seed)), assistant(says(seed + 1)))

    def ask(self, seed: int) -> None:
        ids = [IDS[(seed + n) % 4] for n in range(1 + seed % 3)]
        self.append(user(says(seed)), told(says(seed), *ids) if seed % 2 else calls(*ids))
        self.append(*(result(i, says(seed)) for i in ids[seed % 3 :]))

    def work(self, seed: int) -> None:
        """A turn of several rounds, all answered."""
        self.append(user(says(seed)))
        for n in range(1 + seed % 4):
            ids = [IDS[(seed + n + k) % 4] for k in range(1 + (seed + n) % 3)]
            said = told(says(n), *ids) if (seed + n) % 3 else calls(*ids)
            self.append(said, *(result(i, says(seed)) for i in reversed(ids)))
        self.append(assistant(says(seed)))

    def think(self, seed: int) -> None:
        """An answer of some provider's model with reasoning before its calls, their results, and what it says then."""
        content = []
        ids = [IDS[(seed + n) % 4] for n in range(1 + seed % 3)]
        for n, call_id in enumerate(ids):
            if n != 1:
                thought = row_pb2.ReasoningBlock(text="hm", state="c3RhdGU=", signature="c2lnbmVk")
                content.append(row_pb2.ContentBlock(reasoning=thought))
            call = row_pb2.ToolCallBlock(call_id=call_id, name="read", arguments_json="{}")
            content.append(row_pb2.ContentBlock(tool_call=call))
        self.answered(content, seed, ids)

    def serve(self, seed: int) -> None:
        """A server tool that pauses beside a call of the host's, and what continues it."""
        made = row_pb2.ServerToolBlock(call_id=f"s{self.served}", name="search", json="{}")
        done = row_pb2.ServerToolBlock(call_id=f"s{self.served}", name="search", json="{}", result=True)
        self.served += 1
        first, second = IDS[seed % 4], IDS[(seed + 1) % 4]
        beside = [
            row_pb2.ContentBlock(tool_call=row_pb2.ToolCallBlock(call_id=i, name="read", arguments_json="{}"))
            for i in (first, second)
        ]
        paused = [beside[0], row_pb2.ContentBlock(server_tool=made)]
        self.answered(paused[:: 1 if seed % 2 else -1], seed, [first], row_pb2.STOP_REASON_PAUSED if seed % 3 else 0)
        said = row_pb2.ContentBlock(text=row_pb2.TextBlock(text=says(seed)))
        self.answered([row_pb2.ContentBlock(server_tool=done), said, beside[1]], seed, [second])

    def answered(self, content: list[row_pb2.ContentBlock], seed: int, ids: list[str], stop: Any = 0) -> None:
        model = model_pb2.ModelRef(provider=("openai", "anthropic", "google", "")[seed % 4], model="m")
        self.rows(
            row_pb2.Row(assistant=row_pb2.AssistantRow(content=content, model=model, stop_reason=stop)),
            *(
                row_pb2.Row(
                    tool_result=row_pb2.ToolResultRow(
                        call_id=i, content=[row_pb2.ContentBlock(text=row_pb2.TextBlock(text=says(seed)))]
                    )
                )
                for i in ids
            ),
        )

    def reply(self, seed: int) -> None:
        self.append(result(IDS[seed % 4], says(seed)))

    def open(self, seed: int) -> None:
        self.runs += 1
        self.prepared = self.prepare(f"r{self.runs}", user(says(seed)), supersede_open_run=True)

    def round(self, seed: int) -> None:
        """A round of the open run: calls, and results of some of them."""
        ids = [IDS[(seed + n) % 4] for n in range(1 + seed % 3)]
        said = told(says(seed), *ids) if seed % 2 else calls(*ids)
        outcome = self.answer(self.prepared, said, usage={"prompt_tokens": 50 + seed, "completion_tokens": 3})
        given = [result(i, says(seed)) for i in ids[: 1 + seed % 2]]
        self.prepared = self.prepare(f"r{self.runs}", *given, previous_answer=outcome)

    def close(self, seed: int) -> None:
        self.record(
            f"r{self.runs}",
            self.answer(self.prepared, assistant(says(seed)), finish=compaction_pb2.RUN_OUTCOME_COMPLETED),
        )

    def cut_calls(self, seed: int) -> None:
        self.trim(1 + seed % 3)
        self.trimmed += 1

    def fold(self, seed: int) -> None:
        self.compact() if seed % 2 else self.save()

    def cut(self, seed: int) -> None:
        offsets = self.offsets()
        if not offsets:
            return
        first = seed % len(offsets)
        request = session_service_pb2.EditRowsRequest(
            session_id=self.id, first_offset=offsets[first],
            last_offset=offsets[min(len(offsets) - 1, first + seed % 3)],
        )  # fmt: skip
        self.client.session.EditRows(request)

    def back(self, seed: int) -> None:
        newest = self.get().session.revision
        restore(self, max(0, newest - seed % 12))

    def copy(self, seed: int) -> None:
        """A fork of some revision is whole, and can be trimmed on."""
        name = f"{self.id}-f{next(_names)}"
        self.client.session.ForkSession(
            session_service_pb2.ForkSessionRequest(
                session_id=self.id, fork_session_id=name, revision=seed % (1 + self.get().session.revision)
            )
        )
        other = Agent.__new__(Agent)
        other.client, other.id, other.list, other.revision = self.client, name, [], 0
        other.sound()
        with contextlib.suppress(grpc.RpcError):
            other.trim(1)
        other.sound()

    def check(self) -> None:
        verified = self.verify()
        assert verified.ok, verified.faults
        active = self.active()
        made = Counter(
            (r.assistant.derived_from or r.offset, b.tool_call.call_id)
            for r in active
            for b in r.assistant.content
            if b.HasField("tool_call")
        )
        assert all(times == 1 for times in made.values()), "a call stands once"
        for row in active:
            if row.HasField("tool_result") and not row.tool_result.late:
                assert (row.tool_result.call_offset, row.tool_result.call_id) in made
        for fmt, faults in PROVIDERS.items() if active else ():
            found = faults(self.rendered(fmt))
            assert not found, (row_pb2.Format.Name(fmt), found)
        self.remembered(active)

    def remembered(self, active: list[row_pb2.Row]) -> None:
        """M2: no entry twice, none of a row in the list, none of a derived row."""
        request = memory_service_pb2.EnumerateScopeRequest(session_id=self.id, limit=1000)
        entries = [
            (e.offset, e.byte_range.start, e.byte_range.end) for e in self.client.memory.EnumerateScope(request).entries
        ]
        assert len(entries) == len(set(entries))
        derived = {r.offset for r in self.archive() if r.assistant.derived_from}
        assert not {r.offset for r in active}.union(derived).intersection(o for o, _, _ in entries)

    def replica(self) -> None:
        """W1: splices against whatever the host holds give the list."""
        self.runs += 1
        self.prepare(f"r{self.runs}", user("and now?"), supersede_open_run=True)
        assert self.list == self.offsets()


KINDS = [
    "talk", "work", "work", "ask", "think", "think", "serve", "reply", "reply", "open", "round", "round", "round",
    "close", "cut_calls", "cut_calls", "cut_calls", "cut_calls", "fold", "cut", "back", "copy",
]  # fmt: skip
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 99)), min_size=4, max_size=22)


@given(steps=STEPS, looks=st.sets(st.integers(0, 20), max_size=4))
@settings(max_examples=40, deadline=None)
def test_k2_trims_among_everything_else_keep_every_promise(
    client: Client, steps: list[tuple[str, int]], looks: set[int]
) -> None:
    player = Player(client)
    player.work(3)
    for number, (kind, seed) in enumerate(steps):
        if kind in ("round", "close") and player.prepared is None:
            kind = "open"
        player.step(kind, seed)
        if number in looks:
            player.replica()
        if kind in ("cut_calls", "back", "cut", "fold"):
            player.check()
    player.check()
    player.replica()
