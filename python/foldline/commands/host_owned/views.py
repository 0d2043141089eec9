"""A host's list as one call sends it: read, recognised and measured (H1, H2, 4.5).

Recognised are the summaries that this session issued, rows that an earlier fold brought into the archive, and the list
of the last answer, where the new one begins with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from foldline import _core
from foldline.commands.inputs import RawMessages, RowsInput
from foldline.commands.live import LiveSession
from foldline.commands.services import Services
from foldline.domain.enums import RowKind
from foldline.domain.errors import FoldlineError, Reason
from foldline.domain.events import Warning_
from foldline.domain.folding import RowFacts, Snapshot, facts_of
from foldline.domain.ports import CallUpdate
from foldline.domain.projections import Projection, ProjectionState, StagedFold, digest_of_text
from foldline.domain.rows import (
    CompactionSummaryRow,
    RowBody,
    TextBlock,
    ToolResultRow,
    UserRow,
    decode_body,
    encode_body,
    kind_of,
)
from foldline.domain.session import CallState, Session
from foldline.engine.hosted import (
    HostList,
    Known,
    SentRow,
    Transcript,
    keys_of,
    list_digests,
    numbered,
    plain_summary,
    read,
    row_name,
    unanswered_here,
)


@dataclass(frozen=True, slots=True)
class Given:
    """A transcript as a call carries it.

    Attributes:
        contents: canonical bodies of its rows; ``digests`` of them.
    """

    sent: HostList
    contents: tuple[bytes, ...]
    digests: tuple[bytes, ...]
    warnings: tuple[Warning_, ...] = ()


def given(services: Services, rows: RowsInput, row_ids: Sequence[str], open_run_start: str, run_id: str) -> Given:
    """Reads what a host sent; needs no session.

    Raises:
        FoldlineError: FORMAT_INVALID; FIELD_VALIDATION where there are not as many ids as rows or messages.
    """
    warnings: tuple[Warning_, ...] = ()
    if isinstance(rows, RawMessages):
        parsed = services.formats.parse(rows.format, rows.json)
        sent = tuple(SentRow(n, *span) for n, span in zip(parsed.rows, parsed.spans, strict=True))
        count, warnings = parsed.messages, tuple(parsed.warnings)
    else:
        sent = tuple(SentRow(n, i, i) for i, n in enumerate(rows))
        count = len(sent)
    if count != len(row_ids):
        raise FoldlineError(
            Reason.FIELD_VALIDATION, f"transcript.row_ids has {len(row_ids)} ids for {count} rows or messages",
            field="transcript.row_ids", value=len(row_ids), range=f"{count} ids",
        )  # fmt: skip
    contents = tuple(encode_body(r.new.body) for r in sent)
    digests = tuple(hashlib.sha256(c).digest() for c in contents)
    return Given(HostList(sent, tuple(row_ids), open_run_start, run_id), contents, digests, warnings)


@dataclass(slots=True)
class Sizes:
    """(raw tokens, bytes) of the rows of a host's last list by digest: only what is new is counted again (4.5)."""

    encoding: str | None
    known: dict[bytes, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """A list with all that is known of its rows.

    Attributes:
        names: what stands for each row in the digest of a list.
        archived: offsets of rows and summaries that are in the archive.
        again: those of rows alone: they are folded, and the host holds them active again (M2).
        next_offset: the first that no row of the list has.
        uncommitted: (position, projection) of a summary among the rows that is staged only.
    """

    sent: HostList
    transcript: Transcript
    names: tuple[bytes, ...]
    facts: tuple[RowFacts, ...]
    archived: frozenset[int]
    again: frozenset[int]
    next_offset: int
    uncommitted: tuple[int, Projection] | None
    warnings: tuple[Warning_, ...]

    def digest(self, rows: int) -> str:
        """Digest of the leading rows; empty where the list has fewer."""
        return list_digests(self.names, (rows,)).get(rows, "")

    def begins_with(self, rows: int, digest: str) -> bool:
        return bool(digest) and self.digest(rows) == digest

    def pinned_digest(self, rows: int) -> str:
        """As ``digest``, of their pins too: those are no part of what is sent, but of what may fold."""
        names = [n + (b"p" if f.pinned else b"") for n, f in zip(self.names, self.facts, strict=True)]
        return list_digests(names, (rows,)).get(rows, "")

    def grew_behind(self, fold: StagedFold) -> bool:
        """Whether the list only grew behind the one that a fold was made from: what it may take, it may take still."""
        if self.pinned_digest(fold.list_rows) != fold.list_digest:
            return False
        run = self.transcript.open_run
        if fold.run_start or run is None:
            return (self.sent.open_run_start, run.run_id if run else "") == (fold.run_start, fold.run_id)
        opened = next(i for i, r in enumerate(self.transcript.rows) if r.offset == run.opened_offset)
        return opened >= fold.list_rows

    def size(self) -> tuple[int, int]:
        """(raw tokens, bytes); superseded system rows count nothing (4.1)."""
        live = [f for f in self.facts if not f.superseded]
        return sum(f.tokens for f in live), sum(f.bytes for f in live)

    def snapshot(self, revision: int, factor: float) -> Snapshot:
        t = self.transcript
        return Snapshot(revision, self.facts, t.open_run, t.carried_through, t.prepared_through, factor)


def view_of(services: Services, live: LiveSession, sent: Given) -> View:
    """Recognises, measures and numbers a list. Under the session's lock; only sizes are remembered.

    The numbers hold until something else is staged.

    Raises:
        FoldlineError: SUMMARY_ROW_REFUSED for a summary that this session did not issue (H2); FIELD_VALIDATION for
            an id whose row is in the archive with another content; what ``engine.hosted.read`` refuses.
    """
    return _Viewer(services, live, sent).view()


class _Viewer:
    def __init__(self, services: Services, live: LiveSession, sent: Given) -> None:
        self.services, self.live, self.session, self.given = services, live, live.session, sent
        self.rows = sent.sent.rows
        self.keys = keys_of(sent.sent)
        self.contents = list(sent.contents)
        self.digests = list(sent.digests)
        self.archived: dict[int, int] = {}
        """Offsets by position of what is in the archive."""
        self.uncommitted: tuple[int, Projection] | None = None

    def view(self) -> View:
        summaries = self._summaries()
        again = self._in_archive(summaries)
        kinds = [
            RowKind.COMPACTION_SUMMARY if i in summaries else kind_of(r.new.body) for i, r in enumerate(self.rows)
        ]  # fmt: skip
        names = tuple(map(row_name, self.keys, kinds, self.digests))
        calls, history = self._calls(again)
        known = Known(summaries, calls, history, self._carried(names))
        offsets, following = self._offsets()
        transcript = numbered(read(self.given.sent, known, now=self.services.clock()), offsets)
        index = self.services.policy(self.session).policy.memory.index_tool_results
        facts = tuple(
            facts_of(
                row, *size, superseded=row.offset in transcript.superseded, index_tool_results=index, digest=digest
            )
            for row, size, digest in zip(transcript.rows, self._measured(), self.digests, strict=True)
        )
        return View(
            self.given.sent, transcript, names, facts, frozenset(self.archived.values()), again, following,
            self.uncommitted, (*self.given.warnings, *transcript.warnings),
        )  # fmt: skip

    def _offsets(self) -> tuple[list[int], int]:
        """The offset of each row: the one that it has in the archive, or the session's next; and the next after all."""
        offsets, following = list[int](), self.session.next_offset
        for position in range(len(self.rows)):
            known = self.archived.get(position)
            offsets.append(following if known is None else known)
            following += known is None
        return offsets, following

    # Summaries (H2)

    def _summaries(self) -> dict[int, CompactionSummaryRow]:
        """The issued summaries among the rows; their content becomes what was issued."""
        claimed = {i: r.new.body for i, r in enumerate(self.rows) if isinstance(r.new.body, CompactionSummaryRow)}
        texts = self._texts() if self.session.folds or self.session.staged else {}
        issued = self.services.store.issued_projections(
            self.session.key, sorted({b.digest for b in claimed.values()}), sorted(texts)
        )  # fmt: skip
        found: dict[int, Projection] = {}
        for position, body in claimed.items():
            same = [p for p in issued if p.digest == body.digest]
            if not same:
                raise self._not_issued(position)
            found[position] = next((p for p in same if p.fold_id == body.fold_id), same[0])
        for projection in issued:
            for position in texts.get(projection.text_digest, ()):
                found.setdefault(position, projection)
        stored = self.services.store.read_rows(self.session.key, [p.summary_offset for p in found.values()])
        bodies = {r.offset: r.body for r in stored}
        if any(p.state is ProjectionState.STAGED for p in found.values()):
            staged = self.services.store.staged_projection(self.session.key)
            bodies |= {r.offset: r.body for r in staged[1].rows[-1:]} if staged else {}
        made: dict[int, CompactionSummaryRow] = {}
        for position, projection in found.items():
            if projection.state is ProjectionState.STAGED:
                self.uncommitted = (position, projection)
            content = bodies.get(projection.summary_offset)
            issued_as = decode_body(content) if content is not None else None
            if content is None or not isinstance(issued_as, CompactionSummaryRow):
                raise self._not_issued(position)
            made[position] = issued_as
            self.contents[position], self.digests[position] = content, hashlib.sha256(content).digest()
            self.archived[position] = projection.summary_offset
        return made

    def _texts(self) -> dict[str, list[int]]:
        """Positions of user rows that may be summaries, by the digest of their text."""
        found: dict[str, list[int]] = {}
        for position, row in enumerate(self.rows):
            body = row.new.body
            if isinstance(body, UserRow) and len(body.content) == 1 and isinstance(body.content[0], TextBlock):
                found.setdefault(digest_of_text(plain_summary(body.content[0].text)), []).append(position)
        return found

    def _not_issued(self, position: int) -> FoldlineError:
        row_id = self.keys[position][0]
        return FoldlineError(
            Reason.SUMMARY_ROW_REFUSED,
            f"row {row_id} is a summary whose digest is of no record of this session that was issued and still holds",
            row=position, row_id=row_id,
        )  # fmt: skip

    # Rows that have folded before (M2)

    def _in_archive(self, summaries: Mapping[int, CompactionSummaryRow]) -> frozenset[int]:
        if not self.session.folds:
            return frozenset()
        known = {
            (r.row_id, r.part): r.offset
            for r in self.services.store.host_rows(self.session.key, self.given.sent.row_ids)
        }
        places = {i: known[key] for i, key in enumerate(self.keys) if key in known and i not in summaries}
        stored = {r.offset: r.body for r in self.services.store.read_rows(self.session.key, list(places.values()))}
        for position, offset in places.items():
            if encode_body(as_sent(decode_body(stored[offset]))) != self.contents[position]:
                row_id = self.keys[position][0]
                raise FoldlineError(
                    Reason.FIELD_VALIDATION,
                    f"row {row_id} was folded with another content (row {offset} of the archive): what changes needs a "
                    "new id", field="transcript.row_ids", value=row_id, range="a new id for what changed",
                    row=position, detail=f"offset {offset}",
                )  # fmt: skip
            self.archived[position] = offset
        return frozenset(places.values())

    def _calls(self, again: frozenset[int]) -> tuple[tuple[CallState, ...], dict[str, list[CallUpdate]]]:
        """Calls of folded rows that the list answers: those that wait, and all of these ids (R3)."""
        history = {i: self.services.store.find_calls(self.session.key, i) for i in unanswered_here(self.rows)}
        # A call whose result the host holds again, while the call is still folded, waits for exactly that result.
        waiting = tuple(
            CallState(-c.offset, c.call_id, "", folded=True)
            for found in history.values()
            for c in found
            if c.removed_by is None and (c.result_offset is None or c.result_offset in again)
        )
        return waiting, history

    def _carried(self, names: Sequence[bytes]) -> int:
        """Leading rows that the last answer gave to be sent."""
        last = self.session.last_prepared
        if last is None or not last.list_digest:
            return 0
        return last.rows if list_digests(names, (last.rows,)).get(last.rows) == last.list_digest else 0

    def _measured(self) -> list[tuple[int, int]]:
        encoding = self.services.encoding(self.session.model)
        held = self.live.host_sizes
        known = held.known if held is not None and held.encoding == encoding else {}
        new = {d: c for d, c in zip(self.digests, self.contents, strict=True) if d not in known}
        sizes = dict(zip(new, _core.measure_rows(list(new.values()), encoding), strict=True))
        found = [known.get(d) or sizes[d] for d in self.digests]
        self.live.host_sizes = Sizes(encoding, dict(zip(self.digests, found, strict=True)))
        return found


def as_sent(body: RowBody) -> RowBody:
    """An archived body without what the sidecar set on it."""
    if isinstance(body, ToolResultRow) and (body.late or body.call_offset is not None):
        return msgspec.structs.replace(body, late=False, call_offset=None)
    return body


def is_new_session(session: Session) -> bool:
    """Whether no boundary was counted yet: assistant rows that came before count as some (§1 boundary)."""
    return session.last_prepared is None and session.cadence.boundaries == 0
