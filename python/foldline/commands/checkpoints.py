"""SaveCheckpoint, ListCheckpoints and GetCheckpoint (K1-K3).

A checkpoint is written with the change it tells of, in one transaction. Where nothing folds it is saved alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from foldline.commands import usage_marks
from foldline.commands.check_pressure import pressure_of, shape_of_last
from foldline.commands.compact_session import refusal_of
from foldline.commands.draft import Draft
from foldline.commands.fold import run_fold
from foldline.commands.fold_parts import FoldRequest
from foldline.commands.idempotency import answer_of, remember, repeated
from foldline.commands.live import LiveSession
from foldline.commands.measuring import RequestShape
from foldline.commands.ownership import sidecar_owned
from foldline.commands.relist import answered_or_free
from foldline.commands.services import Caller, Services
from foldline.commands.sessions import require_revision
from foldline.commands.trimming import trim
from foldline.domain.checkpoints import Checkpoint
from foldline.domain.enums import CheckpointKind, EventKind, SkipReason, Trigger
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.folding import CompactionRecord
from foldline.domain.ports import StoredRequest
from foldline.domain.session import Session

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """What the agent did so far, and what is to become of it.

    Attributes:
        trim_count: completed calls to trim (K2); None for the ordinary manual fold (K1).
    """

    session_id: str
    description: str
    trim_count: int | None = None
    request_id: str = ""
    expected_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """A saved checkpoint; ``record`` of its fold, or in ``skip`` why nothing folded."""

    checkpoint: Checkpoint
    record: CompactionRecord | None = None
    skip: SkipReason | None = None


def save_checkpoint(services: Services, caller: Caller, save: SaveCheckpoint) -> Saved:
    """Saves a checkpoint and folds, or trims.

    Raises:
        FoldlineError: SESSION_NOT_FOUND, CHECKPOINTS_DISABLED, TRIM_COUNT_TOO_LARGE with how many calls there are,
            REVISION_MISMATCH, REQUEST_ID_REUSED, FOLD_IN_PROGRESS (L2), FIELD_VALIDATION for a session that its host
            keeps, and what a manual fold fails of. The transcript is then as it was, and nothing is saved.
    """
    return save_answering(services, caller, save, lambda saved: saved, Saved)


def save_answering(
    services: Services, caller: Caller, save: SaveCheckpoint, answer: Callable[[Saved], A], kind: type[A]
) -> A:
    """The same for a caller whose own answer is remembered for a repeat (W2).

    Args:
        answer: makes it, of type ``kind``, of what was saved.
    """
    with services.sessions.use(caller.tenant, save.session_id) as live:
        return _Saving(services, caller, live, save, answer, kind).run()


class _Saving(Generic[A]):
    """One call: what it saves is made once, also where a fold is joined or has a second one behind it."""

    def __init__(
        self, services: Services, caller: Caller, live: LiveSession, save: SaveCheckpoint,
        answer: Callable[[Saved], A], kind: type[A],
    ) -> None:  # fmt: skip
        self.services, self.caller, self.live, self.save = services, caller, live, save
        self.answer, self.kind = answer, kind
        self.checkpoint_id = f"c-{uuid.uuid4().hex}"
        self.made: Checkpoint | None = None

    def run(self) -> A:
        while True:
            with self.live.locked():
                self._admit()
                trims = self.save.trim_count
                found = self._answered() if trims is None else self._answered_or_free()
                if found is not None:
                    return answer_of(found, self.kind)
                require_revision(self.live.session, self.save.expected_revision)
                done = self._compacted() if trims is None else self._trimmed(trims)
            if done is not None:
                return self.answer(done)

    def _answered(self) -> StoredRequest | None:
        return repeated(self.services, self.caller, self.live.session.key, self.save.request_id)

    def _answered_or_free(self) -> StoredRequest | None:
        return answered_or_free(self.services, self.caller, self.live, self.save.request_id)

    def _admit(self) -> None:
        session = self.live.session
        if not usage_marks.enabled(self.services, session):
            raise disabled(session)
        sidecar_owned(session)

    def _trimmed(self, count: int) -> Saved:
        """K2."""
        checkpoint = trim(
            self.services, self.live, self.checkpoint_id, self.save.description, count,
            lambda checkpoint: self._remembered(Saved(checkpoint)),
        )  # fmt: skip
        return Saved(checkpoint)

    def _compacted(self) -> Saved | None:
        """K1; None where another caller's fold was waited for that says nothing of this call: it is looked at anew."""
        session = self.live.session
        shape = shape_of_last(self.services, session, RequestShape())
        pressure = pressure_of(self.services, self.live, shape, None, manual=True, manual_trigger=Trigger.CHECKPOINT)
        request = FoldRequest(
            decision=pressure.decision, policy=pressure.policy, limits=pressure.limits,
            tools_tokens=pressure.report.parts.tools, tools_bytes=shape.beside_bytes(pressure.tools),
            model=shape.model, checkpoint=self._of_fold,
            remember=lambda record: self._remembered(Saved(self._of_fold(record), record)),
        )  # fmt: skip
        # The lock is given back while it waits, and not before the fold has its snapshot.
        outcome = run_fold(self.services, self.live, request, wait=self.caller.left)
        if outcome.pending is not None:
            fold_id = self.live.fold.fold_id if self.live.fold else ""
            raise FoldlineError(
                Reason.FOLD_IN_PROGRESS, "another fold of this session is still running", fold_id=fold_id
            )
        if outcome.joined and (outcome.record is None or self._answered() is not None):
            # It failed, and one of its own comes after it; or it was this call's, which came twice (W2).
            return None
        if outcome.record is not None:
            done = Saved(self._of_fold(outcome.record), outcome.record)
            if outcome.joined:
                self._save_alone(done)
            return done
        if outcome.failure is not None and not outcome.nothing:
            raise refusal_of(outcome)
        at = self.live.session.revision
        done = Saved(
            Checkpoint(
                self.checkpoint_id, self.save.description, CheckpointKind.COMPACT, self.services.clock(), at, at
            ),
            skip=outcome.skip if outcome.failure is None else SkipReason.NOTHING_TO_FOLD,
        )
        self._save_alone(done)
        return done

    def _of_fold(self, record: CompactionRecord) -> Checkpoint:
        if self.made is None:
            self.made = Checkpoint(
                self.checkpoint_id, self.save.description, CheckpointKind.COMPACT, record.time, record.revision_before,
                record.revision_after, record.fold_id, discarded=record.discarded,
            )  # fmt: skip
        return self.made

    def _save_alone(self, saved: Saved) -> None:
        """Without a change of the list: nothing folded, or another caller's fold did (L2)."""
        draft = Draft(self.services, self.live)
        draft.checkpoint = saved.checkpoint
        run = draft.session.open_run
        draft.event(
            EventKind.CHECKPOINT_SAVED, run_id=run.run_id if run else "", fold_id=saved.checkpoint.fold_id,
            trigger=Trigger.CHECKPOINT, checkpoint=saved.checkpoint,
        )  # fmt: skip
        draft.commit(self._remembered(saved))

    def _remembered(self, saved: Saved) -> StoredRequest | None:
        return remember(self.services, self.caller, self.save.request_id, self.answer(saved))


def disabled(session: Session) -> FoldlineError:
    return FoldlineError(
        Reason.CHECKPOINTS_DISABLED,
        f"checkpoints of session {session.session_id} are off: its policy has no checkpoints.enabled",
        session_id=session.session_id,
    )


def list_checkpoints(
    services: Services, caller: Caller, session_id: str, before: int | None, limit: int
) -> tuple[list[Checkpoint], int | None]:
    """A page of checkpoints, newest first, and where the next one goes on; None at the end.

    Raises:
        FoldlineError: SESSION_NOT_FOUND.
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        found = services.store.checkpoints(live.session.key, before, limit + 1)
    page = found[:limit]
    return [checkpoint for _, checkpoint in page], page[-1][0] if len(found) > limit else None


def get_checkpoint(services: Services, caller: Caller, session_id: str, checkpoint_id: str) -> Checkpoint:
    """One checkpoint.

    Raises:
        FoldlineError: SESSION_NOT_FOUND; FIELD_VALIDATION where the session has none of that id.
    """
    with services.sessions.use(caller.tenant, session_id) as live:
        found = services.store.find_checkpoint(live.session.key, checkpoint_id)
    if found is None:
        raise FoldlineError(
            Reason.FIELD_VALIDATION, f"session {session_id} has no checkpoint {checkpoint_id}", field="checkpoint_id",
            value=checkpoint_id, range="a checkpoint of the session",
        )  # fmt: skip
    return found
