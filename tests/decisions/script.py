"""What a host does in one line, through a real server: ``"U A >r1:U R(c1) =r1 #"``.

    U A(c1)@r1      a row of ``tests.notation``, appended; ``U+I+U`` are three rows in one append
    >r1  >r1:U+N    PrepareRequest of run r1, with rows; the one before it is answered where an assistant row came
    ^r1             the same, and it takes the place of an open run
    =r1  =r1:failed  FinishRun
    *r1             the provider refuses the last request for its size
    #               CompactSession

Every row is about 150 tokens, an assistant row has text beside its calls. Offsets count from 1; a summary takes one.
"""

from __future__ import annotations

from typing import Any

from foldline.v1 import compaction_pb2, compaction_service_pb2, row_pb2

from tests.integration.host import SMALL, Host
from tests.notation import WORD

SENTENCE = (
    "The consumer of queue {n} restarts before it has acknowledged message {n}-{i}, so that the broker sends it anew. "
)


def text(n: int, sentences: int = 6) -> str:
    return "".join(SENTENCE.format(n=n, i=i) for i in range(sentences))


def _block(n: int) -> row_pb2.ContentBlock:
    return row_pb2.ContentBlock(text=row_pb2.TextBlock(text=text(n)))


def row(word: str, n: int) -> row_pb2.Row:
    """A typed row of a word of the notation; ``n`` makes its text its own."""
    match = WORD.match(word)
    assert match, word
    letter, inner, run, flags, _ = match.groups()
    names = inner.split(",") if inner else []
    made = row_pb2.Row(run_id=run or "", pinned="!" in flags)
    if letter == "S":
        made.system.content.add().CopyFrom(_block(n))
        if names:
            made.system.key, made.system.version = names[0], int(names[1])
    elif letter == "N":
        made.notice.content.add().CopyFrom(_block(n))
        made.notice.kind = "job"
    elif letter == "U":
        made.user.content.add().CopyFrom(_block(n))
    elif letter == "I":
        made.injected_context.content.add().CopyFrom(_block(n))
    elif letter == "R":
        made.tool_result.call_id, made.tool_result.interim = names[0], "?" in flags
        made.tool_result.content.add().CopyFrom(_block(n))
    elif letter == "A":
        _assistant(made.assistant, names, flags, n)
    else:
        raise AssertionError(f"{word} is not a host's to send")
    return made


def _assistant(made: row_pb2.AssistantRow, names: list[str], flags: str, n: int) -> None:
    if ">" in flags:
        made.content.add().server_tool.CopyFrom(
            row_pb2.ServerToolBlock(call_id="s", name="search", json="{}", result=True)
        )
    made.content.add().CopyFrom(_block(n))
    for name in names:
        call = row_pb2.ToolCallBlock(call_id=name, name="read", arguments_json=f'{{"n": {n}}}')
        made.content.add().tool_call.CopyFrom(call)
    if "^" in flags:
        made.content.add().server_tool.CopyFrom(row_pb2.ServerToolBlock(call_id="s", name="search", json="{}"))
        made.stop_reason = row_pb2.STOP_REASON_PAUSED


class Script(Host):
    """A host that follows a script; ``prepared`` is the answer to its last PrepareRequest."""

    prepared: compaction_service_pb2.PrepareRequestResponse
    appended = 0

    def play(self, words: str) -> Script:
        for word in words.split():
            head, rest = word[0], word[1:]
            if head in ">^":
                run, _, rows = rest.partition(":")
                self.boundary(run, rows, supersede=head == "^")
            elif head == "=":
                run, _, outcome = rest.partition(":")
                self.finish(run, outcome or "completed")
            elif head == "*":
                self.refuse(rest, self.prepared.prepare_id, 413, "request_too_large")
            elif head == "#":
                self.compact()
            else:
                self.rows(*self.made(word))
        return self

    def made(self, words: str) -> list[row_pb2.Row]:
        rows = []
        for word in filter(None, words.split("+")):
            self.appended += 1
            rows.append(row(word, self.appended))
        return rows

    def boundary(self, run_id: str, words: str = "", *, supersede: bool = False, **fields: Any) -> None:
        request = compaction_service_pb2.PrepareRequestRequest(
            session_id=self.id, run_id=run_id, known_revision=self.revision, supersede_open_run=supersede,
            reply=compaction_pb2.REPLY_MODE_EDITS, **fields,
        )  # fmt: skip
        request.shape.model.CopyFrom(SMALL)
        if words:
            request.append.rows.rows.extend(self.made(words))
        self.prepared = self.client.compaction.PrepareRequest(request)
        self._apply(self.prepared)

    def finish(self, run_id: str, outcome: str) -> None:
        self.client.compaction.FinishRun(
            compaction_service_pb2.FinishRunRequest(
                session_id=self.id,
                run_id=run_id,
                outcome=compaction_pb2.RunOutcome.Value(f"RUN_OUTCOME_{outcome.upper()}"),
            )
        )

    def listing(self) -> str:
        """The active list by offsets, summaries as ``K``."""
        return " ".join("K" if r.HasField("compaction_summary") else str(r.offset) for r in self.active())
