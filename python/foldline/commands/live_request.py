"""The live request that a summary's instruction is appended to, so that the provider reads its cache (S3, APPEND)."""

from __future__ import annotations

from foldline.commands.fold_parts import Attempt
from foldline.commands.render_transcript import render_rows
from foldline.commands.services import Services
from foldline.domain.enums import Format, PromptCache, RowKind
from foldline.domain.folding import ASKED_HERE, LiveRequest
from foldline.domain.policy import Policy
from foldline.domain.ports import Tools
from foldline.domain.rows import ModelRef, Row, TextBlock, UserRow
from foldline.domain.session import Session, Wire


def wire_of(known: Wire | None, policy: Policy, model: ModelRef, fmt: Format | None, tools: Tools) -> Wire | None:
    """What is known now of how a session's requests reach their model; nothing is kept where nobody asks for it.

    Args:
        fmt: that this request is rendered in, or that its messages came in; None where neither is said.
    """
    if policy.summary.prompt_cache is not PromptCache.APPEND and not policy.native.enabled:
        return None
    return Wire(model, fmt or (known.format if known else None), tools.digest, tools.tokens)


def tools_in_sight(services: Services, session: Session) -> bytes | None:
    """JSON of the tools that requests carry, empty for none; None where it is not known."""
    wire = session.wire
    if wire is None:
        last = session.last_prepared
        return None if last is not None and last.beside_tokens else b""
    return services.store.tools_json(session.key, wire.tools_digest) if wire.tools_digest else b""


def live_request(services: Services, attempt: Attempt) -> LiveRequest:
    """The request as it is sent, up to the last row that folds, with all system rows; or why it cannot be made.

    A cache holds prefixes: what comes after the rows that fold would only be read as if it were to be summarized.
    """
    session, wire = attempt.session, attempt.session.wire
    if wire is None or wire.format in (None, Format.CANONICAL):
        return _separate("the host lowers its requests itself")
    tools = tools_in_sight(services, session)
    if tools is None:
        return _separate("the tools are known by their digest only")
    gone = set(attempt.plan.discard)
    facts = attempt.snapshot.rows
    end = max(i for i, row in enumerate(facts) if row.offset in gone) + 1
    last = session.last_prepared
    shortened = last.first_bounded if last is not None and last.rewrites == session.rewrites else None
    if shortened is not None and shortened < end:
        return _separate("results were sent shortened")
    sent = [r for i, r in enumerate(facts) if i < end or r.kind is RowKind.SYSTEM]
    if any(r.kind is RowKind.PROVIDER_COMPACTION for r in sent):
        return _separate("a compaction item of a provider is among the rows")
    asked = Row(session.next_offset, UserRow((TextBlock(ASKED_HERE),)))
    rendered = render_rows(services, session, [*(attempt.rows[r.offset] for r in sent), asked], wire.format)
    tokens = sum(r.tokens for r in sent if not r.superseded) + wire.tools_tokens
    return LiveRequest(wire.model, wire.format, rendered.json, tools, tokens)


def _separate(because: str) -> LiveRequest:
    return LiveRequest(separate_because=because)
