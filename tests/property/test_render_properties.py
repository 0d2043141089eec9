"""R5 over generated sessions: pairs hold, nothing is lost, and what was sent stays a prefix."""

from __future__ import annotations

from foldline.domain.arrangement import Arrangement, AssistantItem, Item, ResultsItem, SystemItem, UserItem
from foldline.domain.changes import replace
from foldline.domain.rows import AssistantRow, SystemRow, ToolResultRow
from foldline.engine.render import archived_calls, arrange
from hypothesis import given

from tests.strategies import Host, Operation, operations


def arranged(host: Host) -> Arrangement:
    gone = {o: host.archive[o] for o in archived_calls(host.rows)}
    return arrange(host.rows, open_run=host.session.open_run, calls=host.session.calls, archived=gone)


def assert_valid(arrangement: Arrangement) -> None:
    """What every provider asks for, in neutral terms."""
    unique: list[str] = []
    for index, item in enumerate(arrangement.items):
        following = arrangement.items[index + 1] if index + 1 < len(arrangement.items) else None
        if isinstance(item, AssistantItem):
            unique += [c.unique_id for c in item.calls]
            if item.calls:
                assert isinstance(following, ResultsItem)
                assert tuple(r.call for r in following.results) == item.calls
                assert following.call_offset == item.offsets[0]
            else:
                assert not isinstance(following, ResultsItem)
            assert item.content
        elif isinstance(item, ResultsItem):
            assert isinstance(arrangement.items[index - 1], AssistantItem)
            assert all(bool(r.row) != bool(r.placeholder) for r in item.results)
    assert len(set(unique)) == len(unique)
    messages = [i for i in arrangement.items if not isinstance(i, SystemItem)]
    assert not messages or isinstance(messages[0], UserItem)


@given(operations())
def test_every_arrangement_is_valid_and_loses_nothing(ops: list[Operation]) -> None:
    host = Host()
    for op in ops:
        host.apply(op)
        arrangement = arranged(host)
        assert_valid(arrangement)
    sent = [o for item in arranged(host).items for o in item.offsets]
    assert len(set(sent)) == len(sent)
    for row in host.rows:
        dropped = row.offset in host.superseded or _only_server_calls(row.body)
        assert (row.offset in sent) or dropped, row


def _only_server_calls(body: object) -> bool:
    return isinstance(body, AssistantRow) and all(type(b).__name__ != "TextBlock" for b in body.content)


def content(item: Item) -> Item:
    """An item less what may change beside the body: pins."""
    if isinstance(item, SystemItem | UserItem | AssistantItem):
        return replace(item, row=None)  # type: ignore[arg-type]
    if isinstance(item, ResultsItem):
        return replace(item, results=tuple(replace(r, row=None) for r in item.results))
    return item


@given(operations())
def test_what_was_sent_stays_a_prefix(ops: list[Operation]) -> None:
    """R3: appends never change an earlier item, but that a server call is left out when it was not continued."""
    host = Host()
    sent: tuple[Item, ...] = ()
    for op in ops:
        before, waiting = host.session.next_offset, host.waiting
        folded = host.apply(op)
        new_system = any(isinstance(r.body, SystemRow) for r in host.rows if r.offset >= before)
        if folded is not None or new_system:
            sent = ()
        now = arranged(host).items
        # A paused row may still be continued or lose its server call, and what came behind it moves behind that (R5).
        last = max((i for i, item in enumerate(sent) if isinstance(item, AssistantItem)), default=None)
        stable = sent[:last] if last is not None and host_paused(sent[last]) else sent
        assert [content(i) for i in now[: len(stable)]] == [content(i) for i in stable]
        if host.waiting and not waiting:
            sent = now


def host_paused(item: Item) -> bool:
    return isinstance(item, AssistantItem) and item.row.body.stop_reason == "PAUSED"  # type: ignore[union-attr]


@given(operations())
def test_arranging_is_a_function_of_the_list(ops: list[Operation]) -> None:
    host = Host()
    for op in ops:
        host.apply(op)
    assert arranged(host) == arranged(host)


@given(operations())
def test_placeholders_are_those_of_unanswered_calls(ops: list[Operation]) -> None:
    """R3: a call whose result stands in its batch has none; one that was answered late keeps it."""
    host = Host()
    for op in ops:
        host.apply(op)
    unanswered = {(c.offset, c.call_id) for c in host.session.calls if not c.folded}
    bodies = [r.body for r in host.rows]
    late = {(b.call_offset, b.call_id) for b in bodies if isinstance(b, ToolResultRow) and b.late}
    assert {(o, c) for o, c, _ in arranged(host).placeholders} <= unanswered | late
