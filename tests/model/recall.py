"""Memory and the agent's own tools: they show what folded, whole, and nothing else (M1, M2, M4-M7, K5)."""

from __future__ import annotations

import json
import re
from typing import Any

from foldline.v1 import memory_pb2, memory_service_pb2, row_pb2, session_service_pb2, tool_service_pb2

from tests.model import rows as made
from tests.model.boundaries import Boundaries
from tests.model.host import Scene
from tests.model.state import State, require
from tests.support.requests import pages

_HEAD = re.compile(r"#(\d+), .*, bytes (\d+) to (\d+) of (\d+)(?:; the rest starts at (\d+))?:\n")
_HIT = re.compile(r"^\[\d+\] #(\d+), ", re.MULTILINE)
TOOL_FORMATS = (1, 2, 3, 4)
_OFTEN = 4
"""Requests that a long text is read in, at most, before the rest is asked for in one range."""


def spoken(state: State) -> list[int]:
    """Folded rows of users and models that hold text or calls: memory must show each (M2)."""
    return [
        offset
        for offset in sorted(state.folded)
        if offset not in state.active
        and state.kind(offset) in ("user", "assistant")
        and not state.archive[offset].row.assistant.derived_from
        and any(_said(b).strip() for b in _content(state, offset))
    ]


def _content(state: State, offset: int) -> Any:
    row = state.archive[offset].row
    return getattr(getattr(row, row.WhichOneof("body")), "content", ())


def _said(block: row_pb2.ContentBlock) -> str:
    return block.text.text or block.tool_call.name


def _cut(whole: bytes, start: int, end: int) -> tuple[int, int]:
    """The characters of a range that lie wholly inside it, the slow way."""
    edges = [0]
    for character in whole.decode():
        edges.append(edges[-1] + len(character.encode()))
    inside = [e for e in edges if start <= e <= end]
    return (inside[0], inside[-1]) if inside else (start, start)


class Recall(Boundaries):
    """Questions to memory by host, administrator and agent; a drop closes it for good."""

    def browse(self, scene: Scene) -> None:
        """The administrator's view: every entry once, in order, filtered before it is paged (M7)."""
        rng, state = self.rng, scene.state
        before = self.look.print_of(state)
        entries = self.enumerated(state, memory_pb2.MemoryFilter())
        require(self.look.get(state).totals.memory_entries == len(entries), "M7", f"{len(entries)} entries")
        if state.dropped:
            require(not entries, "M7", "a dropped scope shows entries")
        else:
            self.entries_are_right(scene, entries)
        if entries:
            self.filtered(state, entries)
            one = rng.choice(entries)
            asked = memory_service_pb2.GetMemoryRequest(session_id=state.id, offset=one.offset, chunk=one.chunk)
            got = self.call(scene, self.client.memory.GetMemory, asked)
            require(got.entry == one, "M6", f"{got.entry} is not {one}")
        if state.active:
            asked = memory_service_pb2.GetMemoryRequest(session_id=state.id, offset=rng.choice(state.active))
            got = self.call(scene, self.client.memory.GetMemory, asked)
            require(not got.HasField("entry") and got.scope_dropped == state.dropped, "M2", "an entry of an active row")
        for limit, key in ((0, True), (1_001, True), (5, False)):
            wrong = memory_service_pb2.EnumerateScopeRequest(session_id=state.id, limit=limit)
            allowed = ("MEMORY_LIMIT_EXCEEDED", "FIELD_VALIDATION") if key else ("ADMIN_ONLY",)
            stub = self.client.memory.EnumerateScope
            refused = self.call(scene, stub if key else stub.func, wrong, expect=allowed)
            require(refused is None, "M7", f"limit {limit}, key {key} was served")
        require(self.look.print_of(state) == before, "R1", "looking at memory changed the session")

    def enumerated(self, state: State, where: memory_pb2.MemoryFilter) -> list[memory_pb2.MemoryEntry]:
        entries: list[memory_pb2.MemoryEntry] = []
        request = memory_service_pb2.EnumerateScopeRequest(
            session_id=state.id, filter=where, limit=self.rng.choice((3, 50, 1_000, 1_000))
        )
        for page in pages(self.client.memory.EnumerateScope, request):
            require(page.scope_dropped == state.dropped, "M7", f"dropped {page.scope_dropped}")
            require(len(page.entries) <= request.limit, "M7", f"{len(page.entries)} entries of {request.limit}")
            entries += page.entries
        places = [(e.offset, e.chunk) for e in entries]
        require(places == sorted(set(places)), "M7", f"entries are doubled or out of order: {places}")
        return entries

    def entries_are_right(self, scene: Scene, entries: list[memory_pb2.MemoryEntry]) -> None:
        """M2: of folded rows alone, each of them, every word of what users said, at the bytes that are told."""
        state = scene.state
        shown: dict[int, list[memory_pb2.MemoryEntry]] = {}
        for entry in entries:
            shown.setdefault(entry.offset, []).append(entry)
        wrong = [o for o in shown if o in state.active or o not in state.folded]
        require(not wrong, "M2", f"entries of rows {wrong}, which are not folded")
        kinds = {state.kind(o) for o in shown}
        require(kinds <= {"user", "assistant", "tool_result"}, "M2", f"entries of {kinds}")
        missing = [o for o in spoken(state) if o not in shown]
        require(not missing, "M2", f"folded rows {missing} have no entry")
        for offset in self.rng.sample(sorted(shown), min(3, len(shown))):
            whole = self.whole_text(scene, offset)
            left = bytearray(whole)
            for number, entry in enumerate(shown[offset]):
                start, end = entry.byte_range.start, entry.byte_range.end
                require(entry.chunk == number, "M2", f"chunk {entry.chunk} of row {offset} in place {number}")
                require(entry.text.encode() == whole[start:end], "M6", f"{entry} is not bytes {start} to {end}")
                require(b"\xff" not in left[start:end], "M2", f"row {offset} is held twice: {entry}")
                left[start:end] = b"\xff" * (end - start)
            lost = bytes(left).replace(b"\xff", b"").decode(errors="replace").strip()
            require(not lost, "M2", f"row {offset} lost {lost[:200]!r}")

    def filtered(self, state: State, entries: list[memory_pb2.MemoryEntry]) -> None:
        rng = self.rng
        where = memory_pb2.MemoryFilter()
        if rng.random() < 0.5:
            where.roles.extend(rng.sample((1, 2, 3), rng.randrange(1, 3)))
        if rng.random() < 0.5:
            where.kinds.extend(rng.sample((1, 3, 4), rng.randrange(1, 3)))
        offsets = [e.offset for e in entries]
        if rng.random() < 0.6:
            where.first_offset = rng.choice(offsets)
        if rng.random() < 0.6:
            where.last_offset = rng.choice(offsets)
        if where.HasField("first_offset") and where.HasField("last_offset") and where.first_offset > where.last_offset:
            where.first_offset, where.last_offset = where.last_offset, where.first_offset
        wanted = [
            e
            for e in entries
            if (not where.roles or e.role in where.roles)
            and (not where.kinds or e.kind in where.kinds)
            and (not where.HasField("first_offset") or e.offset >= where.first_offset)
            and (not where.HasField("last_offset") or e.offset <= where.last_offset)
        ]
        found = self.enumerated(state, where)
        require(found == wanted, "M7", f"{where} shows {len(found)} entries, not {len(wanted)}")

    def drop(self, scene: Scene) -> None:
        """M7: without a key nothing happens; with one the scope is empty and closed, and the archive stays."""
        state = scene.state
        stub = self.client.memory.DropScope
        request = memory_service_pb2.DropScopeRequest(session_id=state.id, request_id=self.request_id(scene))
        require(self.call(scene, stub.func, request, expect=("ADMIN_ONLY",)) is None, "M7", "dropped without a key")
        if self.rng.random() < 0.5:
            return
        held = self.look.get(state).totals.memory_entries
        dropped = self.call(scene, stub, request)
        # Those of rows that are active again, and of folds that a restore took back, are removed too.
        require(dropped.entries >= held, "M7", f"{dropped.entries} entries dropped of {held}")
        state.dropped = True
        require(not self.look.get(state).totals.memory_entries, "M7", "entries are left")
        self.browse(scene)
        self.look.archive(state)

    def search(self, scene: Scene) -> None:
        """M2, M4-M7: hits quote folded rows at the bytes they tell, within what was asked."""
        rng, state = self.rng, scene.state
        offsets = list(state.folded) or list(state.archive)
        if not offsets:
            return
        texts = [b.text.text for b in _content(state, rng.choice(offsets)) if b.text.text] or ["deploy"]
        query = rng.choice((texts[0][:80], '"', "AND OR NOT *", "src/", "\u202e", texts[0][:4000], "", " \n"))
        request = memory_service_pb2.SearchMemoryRequest(
            session_id=state.id, query=query, include_neighbors=rng.random() < 0.5
        )
        limit = rng.choice((None, 1, 5, 20, 0, 21))
        if limit is not None:
            request.limit = limit
        if rng.random() < 0.3:
            request.filter.roles.append(rng.choice((1, 2, 3)))
        if rng.random() < 0.2:
            request.min_score = rng.choice((0.0, 0.3, 1.0))
        expect = ("MEMORY_LIMIT_EXCEEDED", "FIELD_VALIDATION") if limit in (0, 21) else ()
        response = self.call(scene, self.client.memory.SearchMemory, request, expect=(*expect, "EMPTY_QUERY"))
        require(bool(expect) <= (response is None), "M5", f"a limit of {limit} was served")
        require((not query.strip()) <= (response is None), "M5", "an empty query was served")
        if response is None:
            require(expect or not query.strip(), "M5", f"{query!r} was refused")
            return
        require(response.scope_dropped == state.dropped, "M7", f"dropped {response.scope_dropped}")
        require(len(response.hits) <= (5 if limit is None else limit), "M5", f"{len(response.hits)} hits of {limit}")
        require(not (state.dropped and response.hits), "M7", "hits of a dropped scope")
        scores = [h.score for h in response.hits]
        require(all(request.min_score <= s <= 1 for s in scores), "M4", f"scores {scores}")
        for hit in response.hits:
            require(
                hit.offset in state.folded and hit.offset not in state.active, "M2",
                f"hit of row {hit.offset}, which is not folded",
            )  # fmt: skip
            require(not request.filter.roles or hit.role in request.filter.roles, "M4", f"{hit} passes {request}")
        for hit in response.hits[:1]:
            text = self.whole_text(scene, hit.offset)[hit.byte_range.start : hit.byte_range.end]
            require(hit.text.encode() == text, "M6", f"{hit} is not bytes {hit.byte_range}")

    # Rows

    def whole_text(self, scene: Scene, offset: int) -> bytes:
        request = session_service_pb2.ReadRowRequest(session_id=scene.state.id, offset=offset)
        request.range.end = self.client.session.ReadRow(request).text_bytes
        if not request.range.end:
            return b""
        return self.client.session.ReadRow(request).text.encode()  # type: ignore[no-any-return]

    def read_ranges(self, scene: Scene) -> None:
        """M6: any row, whole or by a range of its text: the whole characters of the range, as told."""
        rng, state = self.rng, scene.state
        if not state.archive:
            return
        offset = rng.choice(sorted(state.archive))
        request = session_service_pb2.ReadRowRequest(session_id=state.id, offset=offset)
        got = self.call(scene, self.client.session.ReadRow, request)
        require(got.row.offset == offset and got.row.archived == (offset not in state.active), "M6", got)
        whole = self.whole_text(scene, offset)
        require(len(whole) == got.text_bytes, "M6", f"{len(whole)} bytes of {got.text_bytes}")
        for block in _content(state, offset):
            require(not block.text.text.strip() or block.text.text.encode() in whole, "M6", f"{block} is not in it")
        start = rng.randrange(0, len(whole) + 3)
        end = start + rng.choice((0, 1, 2, 7, 10_000))
        request.range.start, request.range.end = start, end
        part = self.call(scene, self.client.session.ReadRow, request, expect=("FIELD_VALIDATION",))
        if part is None:
            require(start >= min(end, len(whole)), "M6", f"{start} to {end} of {len(whole)} was refused")
            return
        first, last = _cut(whole, start, min(end, len(whole)))
        require(part.text.encode() == whole[first:last], "M6", f"{start} to {end} gives {part}, not {first} to {last}")

    # The agent

    def agent(self, scene: Scene) -> None:
        """K5: the tools are listed in every format; they find folded rows and read any row in full."""
        rng, state = self.rng, scene.state
        before = self.look.print_of(state)
        listed = self.call(
            scene, self.client.tool.ListAgentTools,
            tool_service_pb2.ListAgentToolsRequest(session_id=state.id, format=rng.choice(TOOL_FORMATS)),
        )  # fmt: skip
        names = [t.name for t in listed.tools]
        require({"memory_search", "read_result"} <= set(names), "K5", names)
        require(all(name in listed.tools_json.decode() for name in names), "K5", listed.tools_json)
        found = self.tool(scene, "memory_search", {"query": made.words(rng, 40), "limit": rng.choice((1, 5, 20))})
        require(not found.is_error, "K5", found)
        hits = [int(o) for o in _HIT.findall(found.text)]
        hidden = [o for o in hits if o in state.archive and (o in state.active or o not in state.folded)]
        require(not hidden, "M2", f"the agent found rows {hidden}, which are not folded")
        require(not (state.dropped and hits), "M7", "the agent found what was dropped")
        for name, arguments in (
            ("memory_search", {"query": ""}), ("memory_search", {"query": "x", "limit": 21}), ("read_result", {}),
            ("read_result", {"call_id": "never"}), ("read_result", {"row": len(state.archive) + 1}), ("rm", {}),
        ):  # fmt: skip
            require(self.tool(scene, name, arguments).is_error, "K5", f"{name} {arguments} was run")
        if state.archive:
            self.agent_reads(scene, rng.choice(sorted(state.archive)))
        require(self.look.print_of(state) == before, "R1", "an agent's tools changed the session")

    def agent_reads(self, scene: Scene, offset: int) -> None:
        whole, start, text = self.whole_text(scene, offset), 0, ""
        for _ in range(_OFTEN):
            answer = self.tool(scene, "read_result", {"row": offset, "start": start})
            if not whole:
                require(answer.text.endswith("it holds no text."), "K5", answer)
                return
            head = _HEAD.match(answer.text)
            require(head and int(head[1]) == offset and int(head[4]) == len(whole), "K5", answer)
            assert head is not None
            text += answer.text[head.end() :]
            require(text.encode() == whole[: int(head[3])], "K5", f"row {offset}: {answer}")
            if head[5] is None:
                require(int(head[3]) == len(whole), "K5", f"row {offset} ends at {head[3]} of {len(whole)}")
                return
            require(int(head[5]) == int(head[3]) > start, "K5", f"row {offset} goes nowhere: {answer}")
            start = int(head[5])

    def tool(self, scene: Scene, name: str, arguments: Any) -> tool_service_pb2.CallAgentToolResponse:
        request = tool_service_pb2.CallAgentToolRequest(
            session_id=scene.state.id, name=name, arguments_json=json.dumps(arguments)
        )
        return self.call(scene, self.client.tool.CallAgentTool, request)
