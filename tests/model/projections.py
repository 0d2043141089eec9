"""Projections of hosts' lists: staged, given again, committed, aborted, left to expire (H3)."""

from __future__ import annotations

from foldline.v1 import compaction_pb2, compaction_service_pb2

from tests.model.host import Scene
from tests.model.kept import Answer, Kept, Staged
from tests.model.questions import Questions
from tests.model.state import expanded, require, sent_form


class Projections(Questions):
    """What becomes of a fold once it was answered."""

    def staged(
        self, kept: Kept, request: compaction_service_pb2.CompactTranscriptRequest, answer: Answer, again: bool
    ) -> None:
        log, old = kept.log, kept.staged
        if not answer.projection_id:
            require(not answer.HasField("record") and not answer.discarded_row_ids, "H3", answer)
            require(list(answer.kept_row_ids) == kept.ids, "H3", f"nothing folded and {answer.kept_row_ids} stay")
            if not request.manual:
                kept.shown |= set(kept.ids)
            return
        kept.fold_is_right(answer)
        self.counts[f"hosted {compaction_pb2.FoldScope.Name(answer.record.scope)}"] += 1
        require(answer.projection_id not in kept.ended, "H3", f"{answer.projection_id} had ended")
        if old is not None and not again:
            self.may_give_way(kept, old, answer)
            kept.ended[old.answer.projection_id] = self.reason_of(old)
            self.counts["hosted gave way"] += 1
        if again:
            require(list(answer.discarded_row_ids) == list(old.answer.discarded_row_ids), "L2", answer)
        kept.staged = Staged(
            answer, kept.ids, dict(kept.rows), kept.start, kept.pins,
            answer.projection_expire_time.ToNanoseconds() / 1e9,
        )  # fmt: skip
        log.seen_folds.add(answer.record.fold_id)
        if not request.manual:
            kept.shown |= set(answer.kept_row_ids)

    def reason_of(self, staged: Staged) -> str:
        """Why a projection that ends now, uncommitted, cannot be committed any more."""
        return "PROJECTION_EXPIRED" if self.backend.clock() >= staged.expires else "PROJECTION_NOT_FOUND"

    def may_give_way(self, kept: Kept, old: Staged, answer: Answer) -> None:
        """L2: what is staged is given again while the list only grew, unless it would not make the request fit."""
        now = dict(kept.rows)
        grew = kept.ids[: len(old.ids)] == old.ids and kept.pins == old.pins and kept.start == old.start
        same = all(sent_form(old.rows[i]) == sent_form(now[i]) for i in old.ids) if grew else False
        asked = answer.record.trigger == compaction_pb2.TRIGGER_DID_NOT_FIT
        seen, record = answer.pressure, old.answer.record
        beside = max(0, seen.forecast_tokens - seen.transcript_tokens)
        # The factor may have been learned on since.
        saved = (record.tokens_before - record.tokens_after) / old.answer.pressure.estimator_factor
        left = seen.transcript_tokens - saved * seen.estimator_factor + beside
        fits = left < 0.9 * seen.threshold_tokens and left + seen.output_reserve_tokens < 0.9 * seen.window_tokens
        require(
            not (same and fits and not asked) or self.backend.clock() >= old.expires, "L2",
            f"{old.answer.record} was staged, the list only grew, and {answer.record} took its place: {seen}",
        )  # fmt: skip

    # Projections

    def list_commit(self, kept: Kept) -> None:
        staged = kept.staged
        if staged is None:
            return
        projection = staged.answer.projection_id
        request = compaction_service_pb2.CommitProjectionRequest(
            session_id=kept.log.id, projection_id=projection, request_id=self.request_id(Scene(kept.log))
        )
        over = self.backend.clock() >= staged.expires
        expect = ("PROJECTION_EXPIRED",) if over else ()
        done = self.tried(self.client.compaction.CommitProjection, request, expect)
        require((done is None) == over, "H3", f"{projection} until {staged.expires} at {self.backend.clock()}")
        kept.staged = None
        if done is None:
            kept.ended[projection] = "PROJECTION_EXPIRED"
            return
        wanted = 0 if kept.log.dropped else staged.answer.record.memory_entries
        require(done.memory_entries == wanted, "H3", f"{done.memory_entries} entries published, {wanted} were staged")
        again = self.call(None, self.client.compaction.CommitProjection, request)
        require(again == done, "H3", f"a second commit answers {again}")
        kept.ended[projection], kept.entries[projection] = "", done.memory_entries
        self.published(kept, staged)
        kept.apply(staged)
        self.counts["hosted committed"] += 1

    def published(self, kept: Kept, staged: Staged) -> None:
        """The archive holds what folded, under offsets that were given once, in the list's order."""
        record = staged.answer.record
        gone = [i for i in staged.answer.discarded_row_ids if i not in kept.summaries and i not in kept.offsets]
        known = {*kept.offsets.values(), *kept.summaries.values()}
        fresh = sorted(o for o in expanded(record.discarded) if o not in known)
        require(len(fresh) == len(gone), "H3", f"{gone} folded and got {fresh}")
        kept.offsets.update(zip(gone, fresh, strict=True))
        kept.archive.update({kept.offsets[i]: staged.rows[i] for i in gone})
        kept.archive[record.summary_offset] = staged.answer.summary
        kept.log.folds += 1

    def list_abort(self, kept: Kept) -> None:
        """An abort may be repeated; what was aborted, or committed, is not there to be aborted or committed."""
        over = [p for p, reason in kept.ended.items() if reason != "PROJECTION_EXPIRED"]
        staged = kept.staged
        if staged is not None and self.rng.random() < 0.6:
            projection = staged.answer.projection_id
            request = compaction_service_pb2.AbortProjectionRequest(session_id=kept.log.id, projection_id=projection)
            self.call(None, self.client.compaction.AbortProjection, request)
            self.call(None, self.client.compaction.AbortProjection, request)
            kept.ended[projection] = self.reason_of(staged)
            kept.staged = None
            commit = compaction_service_pb2.CommitProjectionRequest(session_id=kept.log.id, projection_id=projection)
            refused = self.call(
                Scene(kept.log), self.client.compaction.CommitProjection, commit,
                expect=(kept.ended[projection],),
            )  # fmt: skip
            require(refused is None, "H3", "an aborted projection was committed")
        elif over:
            projection = self.rng.choice(over)
            commit = compaction_service_pb2.CommitProjectionRequest(session_id=kept.log.id, projection_id=projection)
            if kept.ended[projection]:
                refused = self.call(
                    Scene(kept.log), self.client.compaction.CommitProjection, commit, expect=("PROJECTION_NOT_FOUND",)
                )
                require(refused is None, "H3", f"{projection} was committed after its end")
                return
            done = self.call(Scene(kept.log), self.client.compaction.CommitProjection, commit)
            require(done.memory_entries == kept.entries[projection], "H3", done)
            abort = compaction_service_pb2.AbortProjectionRequest(session_id=kept.log.id, projection_id=projection)
            refused = self.call(
                Scene(kept.log), self.client.compaction.AbortProjection, abort, expect=("PROJECTION_NOT_FOUND",)
            )
            require(refused is None, "H3", "a committed projection was aborted")

    def list_expire(self, kept: Kept) -> None:
        """Time passes; the projection is there until its end, and not after it."""
        if kept.staged is not None and not self.backend.separate:
            self.backend.now = max(self.backend.now, kept.staged.expires + self.rng.choice((-0.5, 0.01, 1.0)))
            self.list_commit(kept)
