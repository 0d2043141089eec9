"""Hosts that are connected to write summaries, and the tasks that they hold (S6, F12).

A fold asks on its own thread and waits; hosts come, answer and go on the threads of their streams. A task is leased to
one host at a time. The lease runs on with each heartbeat that names the task; one that ends, the stream broken or not,
gives the task to another host while there is time. A host that comes back within its lease takes its tasks up again.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import structlog

from foldline.domain.curators import Curated, CuratorRole, Handed, Lease, Link, Registration, Work
from foldline.domain.enums import FailureKind, Trigger
from foldline.domain.errors import FoldlineError
from foldline.domain.folding import Compacted, SummaryFailed

log = structlog.get_logger(__name__)

Answer: TypeAlias = Curated | Compacted | SummaryFailed
_POLL = 0.1
"""Seconds between looks at whether the fold is still wanted."""
_KINDS: dict[CuratorRole, type[Curated] | type[Compacted]] = {
    CuratorRole.CURATOR: Curated, CuratorRole.COMPACTOR: Compacted,
}  # fmt: skip


class Leases(Protocol):
    """Where leases are kept: the part of the store that is needed here."""

    def put_lease(self, lease: Lease) -> bool: ...
    def renew_leases(self, task_ids: Sequence[str], curator_id: str, expire: float) -> None: ...
    def end_lease(self, task_id: str) -> None: ...


@dataclass(slots=True, eq=False)
class Host:
    """A connected host. ``turn`` is when it was given its last task, among all tasks."""

    curator_id: str
    registration: Registration
    link: Link
    tasks: set[str] = field(default_factory=set)
    turn: int = 0
    connected: bool = True

    @property
    def has_room(self) -> bool:
        return len(self.tasks) < self.registration.max_tasks


@dataclass(slots=True, eq=False)
class _Task:
    """A task.

    Attributes:
        deadline, expire: of ``time.monotonic()``; ``told`` is the deadline in seconds since the epoch.
        lost: hosts whose lease of it ended.
    """

    task_id: str
    work: Work
    deadline: float
    told: float
    attempt: int = 0
    holder: Host | None = None
    expire: float = 0.0
    lost: set[str] = field(default_factory=set)
    answer: Answer | None = None


class Curators:
    """The hosts of one server.

    Args:
        lease: seconds of a host's silence that end its leases.
        clock: seconds since the epoch, for what hosts and the store are told.
    """

    def __init__(self, leases: Leases, lease: float, clock: Callable[[], float]) -> None:
        self.lease = lease
        self._leases, self._clock = leases, clock
        self._changed = threading.Condition()
        self._hosts: dict[str, Host] = {}
        self._tasks: dict[str, _Task] = {}
        self._turns = itertools.count(1)
        self._stopping = False

    # For folds

    def role_for(self, tenant: str, labels: Mapping[str, str], *, background: bool = False) -> CuratorRole | None:
        """Who would write for such a session, room apart: a curator before a compactor; None while nobody would."""
        with self._changed:
            for role in CuratorRole:
                if any(h.registration.takes(role, tenant, labels, background=background) for h in self._hosts.values()):
                    return role
        return None

    def ask(self, work: Work, cancelled: Callable[[], bool]) -> Curated | Compacted:
        """Has a host do the work, and another where that one is lost; waits for one that has room.

        Raises:
            SummaryFailed: CURATOR_UNAVAILABLE where no connected host takes it, or none that has not lost it;
                CURATOR_FAILED where its host failed, was late or answered the wrong thing; CANCELLED; INTERRUPTED where
                the server stops.
        """
        told = self._clock() + work.timeout
        task = _Task(f"t-{uuid.uuid4().hex}", work, time.monotonic() + work.timeout, told)
        with self._changed:
            self._tasks[task.task_id] = task
        why = "the fold is over"
        try:
            while (answer := self._answered(task, cancelled)) is None:
                continue
        except SummaryFailed as failure:
            why = failure.detail
            raise
        finally:
            self._leave(task, why)
        if isinstance(answer, SummaryFailed):
            raise answer
        return answer

    def stop(self) -> None:
        """Ends every wait, and takes no more work."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _answered(self, task: _Task, cancelled: Callable[[], bool]) -> Answer | None:
        """The task's answer, if it is there; hands the task out, or waits a while, if it is not."""
        with self._changed:
            if task.answer is not None:
                return task.answer
            self._take_back(task)
            self._judge(task, cancelled())
            host = None if task.holder else self._choose(task)
            if host is None:
                now = time.monotonic()
                ends = (task.deadline, task.expire) if task.holder else (task.deadline,)
                self._changed.wait(max(0.0, min(_POLL, min(ends) - now)))
                return None
            handed = self._give(task, host)
        if not self._leases.put_lease(self._lease_of(handed, host)):
            raise SummaryFailed(FailureKind.CANCELLED, "the session is gone")
        log.info(
            "a task was handed out", task=task.task_id, session=task.work.session_id, fold_id=task.work.fold_id,
            curator=host.registration.name, curator_id=host.curator_id, attempt=handed.attempt,
        )  # fmt: skip
        host.link.hand(handed)
        return None

    def _take_back(self, task: _Task) -> None:
        """Ends a lease that ran out."""
        host = task.holder
        if host is None or time.monotonic() < task.expire:
            return
        log.warning("a curator was silent and lost its task", task=task.task_id, curator=host.registration.name)
        task.lost.add(host.curator_id)
        self._free(task, "its lease ran out")

    def _free(self, task: _Task, why: str) -> None:
        host, task.holder = task.holder, None
        if host is None:
            return
        host.tasks.discard(task.task_id)
        if host.connected and task.answer is None:
            host.link.cancel(task.task_id, why)
        self._changed.notify_all()

    def _judge(self, task: _Task, cancelled: bool) -> None:
        """Whether there is still something to wait for."""
        work = task.work
        if self._stopping:
            raise SummaryFailed(FailureKind.INTERRUPTED, "the sidecar stops")
        if cancelled:
            raise SummaryFailed(FailureKind.CANCELLED, "nobody wants the summary any more")
        name = work.role.lower()
        if time.monotonic() >= task.deadline:
            if task.attempt:
                raise SummaryFailed(FailureKind.CURATOR_FAILED, f"the {name} took longer than {work.timeout:g} s")
            detail = f"every {name} that takes this session's tasks was busy for {work.timeout:g} s"
            raise SummaryFailed(FailureKind.CURATOR_UNAVAILABLE, detail)
        if task.holder is None and next(self._takers(task), None) is None:
            detail = f"no {name} is connected that takes this session's tasks"
            if task.attempt:
                detail = f"the {name} was lost, and no other is connected that takes this session's tasks"
            raise SummaryFailed(FailureKind.CURATOR_UNAVAILABLE, detail, absent=not task.attempt)

    def _takers(self, task: _Task) -> Iterator[Host]:
        work = task.work
        for host in self._hosts.values():
            if host.curator_id not in task.lost and self._suits(host, work):
                yield host

    def _suits(self, host: Host, work: Work) -> bool:
        background = work.trigger is Trigger.BACKGROUND
        return host.registration.takes(work.role, work.tenant, work.labels, background=background)

    def _choose(self, task: _Task) -> Host | None:
        """The least busy of those that have room; of these the one whose last task is the longest ago."""
        free = (host for host in self._takers(task) if host.has_room)
        return min(free, key=lambda host: (len(host.tasks), host.turn), default=None)

    def _give(self, task: _Task, host: Host) -> Handed:
        task.attempt += 1
        task.holder, task.expire = host, time.monotonic() + self.lease
        host.tasks.add(task.task_id)
        host.turn = next(self._turns)
        return Handed(task.task_id, task.work, task.attempt, task.told, self._clock() + self.lease)

    def _lease_of(self, handed: Handed, host: Host) -> Lease:
        work = handed.work
        return Lease(
            handed.task_id, work.key, work.fold_id, host.curator_id, host.registration.name, handed.attempt,
            handed.lease_expire - self.lease, handed.lease_expire,
        )  # fmt: skip

    def _leave(self, task: _Task, why: str) -> None:
        """The task is over: its host is told, unless it was the one that ended it."""
        with self._changed:
            del self._tasks[task.task_id]
            self._free(task, why)
        if task.attempt:
            try:
                self._leases.end_lease(task.task_id)
            except FoldlineError as error:  # What was answered is not lost over it; a start removes the lease.
                log.error("a lease could not be ended", task=task.task_id, exc_info=error)

    # For hosts

    def connect(self, registration: Registration, link: Link) -> Host:
        """Registers a host until ``disconnect``."""
        host = Host(f"c-{uuid.uuid4().hex}", registration, link)
        link.welcome(host.curator_id)
        with self._changed:
            self._hosts[host.curator_id] = host
            self._changed.notify_all()
        log.info("a curator connected", curator=registration.name, curator_id=host.curator_id, role=registration.role)
        return host

    def disconnect(self, host: Host) -> None:
        """The host's stream is over. Its leases are not: they end with their time, unless it comes back (S6)."""
        with self._changed:
            host.connected = False
            del self._hosts[host.curator_id]
            self._changed.notify_all()
        log.info("a curator is gone", curator=host.registration.name, curator_id=host.curator_id, tasks=len(host.tasks))

    def beat(self, host: Host, task_ids: Sequence[str]) -> float:
        """Lets the leases of these tasks run on; those that are not the host's are taken back.

        Returns:
            When the leases end unless another heartbeat comes, in seconds since the epoch.
        """
        with self._changed:
            kept = [task for task_id in dict.fromkeys(task_ids) if (task := self._held(host, task_id)) is not None]
            for task in kept:
                task.expire = time.monotonic() + self.lease
            expire = self._clock() + self.lease
        held = [task.task_id for task in kept]
        for task_id in task_ids:
            if task_id not in held:
                host.link.cancel(task_id, "it is over, or given to another")
        if held:
            self._leases.renew_leases(held, host.curator_id, expire)
        return expire

    def answer(self, host: Host, task_id: str, answer: Answer) -> bool:
        """Takes a host's answer; one that comes too late is dropped, with a warning in the log."""
        with self._changed:
            task = self._held(host, task_id)
            if task is None or time.monotonic() >= task.deadline:
                log.warning("a curator's answer was dropped", task=task_id, curator=host.registration.name)
                host.link.cancel(task_id, "the answer comes too late")
                return False
            wanted = _KINDS[task.work.role]
            if not isinstance(answer, (wanted, SummaryFailed)):
                given = f"a {type(answer).__name__} for a {task.work.role.lower()}'s task"
                answer = SummaryFailed(
                    FailureKind.CURATOR_FAILED, f"the answer is {given}", model=answer.model, usage=answer.usage
                )
            task.answer = answer
            self._free(task, "")
        return True

    def _held(self, host: Host, task_id: str) -> _Task | None:
        """The task, if it is the host's: its own, or one that it held over a stream that broke (its lease goes on)."""
        task = self._tasks.get(task_id)
        if task is None or task.answer is not None or task.holder is None or time.monotonic() >= task.expire:
            return None
        if task.holder is host:
            return task
        again = host.registration.name == task.holder.registration.name and host.curator_id not in task.lost
        if task.holder.connected or not again or not self._suits(host, task.work):
            return None
        task.holder.tasks.discard(task_id)
        task.holder = host
        host.tasks.add(task_id)
        log.info("a curator came back to its task", task=task_id, curator=host.registration.name)
        return task

    def is_busy(self, host: Host) -> bool:
        """Whether the host holds tasks."""
        with self._changed:
            return bool(host.tasks)
