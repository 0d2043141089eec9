"""What comes back from a model, and how runs end: answers, refusals, usage of every kind."""

from __future__ import annotations

from collections.abc import Sequence

from foldline.v1 import compaction_service_pb2, row_pb2

from tests.model import rows as made
from tests.model.host import Host, Scene
from tests.model.state import State, require


class Answers(Host):
    """Outcomes of prepared requests."""

    def answer_rows(self, scene: Scene) -> list[row_pb2.Row]:
        rng = self.rng
        if rng.random() < 0.45:
            return [made.assistant(rng)]
        count = rng.choice((1, 1, 1, 2, 3))
        used = [
            i for o in scene.state.active for i in scene.state.archive[o].calls if scene.state.kind(o) == "assistant"
        ]
        ids: list[str] = []
        while len(ids) < count:
            again = rng.choice(used) if used and rng.random() < 0.08 else scene.state.next("call_")
            if again not in ids:
                ids.append(again)
        return [made.assistant(rng, ids)]

    @staticmethod
    def closed(state: State) -> None:
        state.runs.append(state.open_run)
        state.last_asked = state.asked
        state.open_run, state.asked = "", []

    def outcome(self, scene: Scene, rows: Sequence[row_pb2.Row]) -> compaction_service_pb2.Outcome:
        rng, state = self.rng, scene.state
        answer = compaction_service_pb2.Answer()
        if rows:
            answer.input.rows.rows.extend(rows)
        draw = rng.random()
        usual = max(1, self.look.get(state).totals.tokens_active)
        if draw < 0.5:
            answer.usage.input_tokens, answer.usage.output_tokens = (
                max(1, int(usual * rng.uniform(0.7, 1.4))),
                rng.randrange(500),
            )
        elif draw < 0.6:
            answer.usage.input_tokens = rng.choice((0, 1, usual * 50, 10**12, 2**62, 2**63 - 1))
        elif draw < 0.65:
            answer.usage.input_tokens, answer.usage.aggregated = usual * 4, True
        elif draw < 0.75:
            answer.usage_json = rng.choice(
                (
                    b"{}",
                    b'{"prompt_tokens":0}',
                    b'{"prompt_tokens":1e200}',
                    b'{"prompt_tokens":18446744073709551616}',
                    b'{"input_tokens":900,"cache_read_input_tokens":50}',
                    b'{"prompt_tokens":1200,"completion_tokens":30}',
                )
            )
        return compaction_service_pb2.Outcome(prepare_id=state.prepared, answer=answer)

    def record(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        if not state.prepared:
            return
        rows = self.answer_rows(scene) if rng.random() < 0.85 else []
        state.fruitless = 0
        sent = list(rows)
        outcome = self.outcome(scene, rows)
        if rows and rng.random() < 0.12:
            outcome.answer.partial = True
            lost = row_pb2.ContentBlock(
                tool_call=row_pb2.ToolCallBlock(call_id=state.next("call_"), name="read", arguments_json='{"path": "sr')
            )
            outcome.answer.input.rows.rows[0].assistant.content.append(lost)
        finish = rng.choice((0, 0, 0, 1, 2, 3)) if state.open_run else 0
        outcome.finish = finish
        request = compaction_service_pb2.RecordAnswerRequest(
            session_id=state.id,
            run_id=rng.choice(("", state.open_run or state.prepared_run)),
            outcome=outcome,
            request_id=self.request_id(scene),
        )
        if not request.run_id:
            request.run_id = state.prepared_run
        response = self.call(
            scene, self.client.compaction.RecordAnswer, request, expect=("RUN_NOT_OPEN", "FORMAT_INVALID")
        )
        if response is None:
            require(
                state.open_run != state.prepared_run or outcome.answer.usage_json,
                "L1",
                "an answer of the open run was refused",
            )
            return
        if sent:
            self.look.appended(state, response.first_offset, response.last_offset, state.revision + 1, sent, True)
        if finish:
            self.closed(state)

    def refuse(self, scene: Scene) -> None:
        rng, state = self.rng, scene.state
        if not state.prepared or state.prepared_run != state.open_run:
            return
        status, body = rng.choice(
            (
                (400, b"maximum context length is 3000 tokens, you requested 4100"),
                (413, b"request entity too large"),
                (400, b"maximum context length is " + b"9" * 5000 + b" tokens, you requested " + b"8" * 30),
                (429, b'{"error":{"message":"Rate limit reached: too many tokens per minute"}}'),
                (500, b""), (529, b"\xff\xfe overloaded"), (0, b""), (401, b"{}"),
            )
        )  # fmt: skip
        refusal = compaction_service_pb2.Refusal(
            http_status=status, raw_body=body, kind=rng.choice((0, 0, 0, 1, 2, 3, 7))
        )
        request = compaction_service_pb2.RecordAnswerRequest(
            session_id=state.id, run_id=state.open_run, request_id=self.request_id(scene),
            outcome=compaction_service_pb2.Outcome(prepare_id=state.prepared, refusal=refusal),
        )  # fmt: skip
        response = self.call(scene, self.client.compaction.RecordAnswer, request)
        require(response.run_closed, "4.4", "a refusal left the run open")
        self.counts[f"refused {response.refusal}"] += 1
        self.closed(state)

    def finish(self, scene: Scene) -> None:
        state = scene.state
        request = compaction_service_pb2.FinishRunRequest(
            session_id=state.id,
            run_id=state.open_run or "run-none",
            outcome=self.rng.choice((1, 2, 3)),
            request_id=self.request_id(scene),
        )
        if (
            self.call(
                scene, self.client.compaction.FinishRun, request, expect=() if state.open_run else ("RUN_NOT_OPEN",)
            )
            is not None
        ):
            self.closed(state)
