"""What the writers of all formats share: who writes which item, and what stands for what cannot be carried (W4)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from foldline.domain.arrangement import (
    Arrangement,
    AssistantItem,
    CallResult,
    Item,
    NativeItem,
    ResultsItem,
    SystemItem,
    UserItem,
    UserKind,
)
from foldline.domain.enums import Format
from foldline.domain.rows import ContentBlock, ReasoningBlock, ServerToolBlock, TextBlock
from foldline.formats.codec import Place
from foldline.formats.losses import Losses
from foldline.formats.media import as_text
from foldline.formats.notes import Notes, read_notes
from foldline.formats.results import Rendered

EMPTY_TEXT = "(no content)"


class Writing(ABC):
    """A transcript in the making, item by item.

    Attributes:
        format: whose notes of rows are read.
        following: the item after the one that is written.
    """

    format: ClassVar[Format]

    def __init__(self) -> None:
        self.losses = Losses()
        self.following: Item | None = None

    def render(self, arrangement: Arrangement) -> Rendered:
        items = arrangement.items
        for item, self.following in zip(items, (*items, None)[1:], strict=True):
            if isinstance(item, SystemItem):
                self.system(item)
            elif isinstance(item, UserItem):
                self.user(item)
            elif isinstance(item, AssistantItem):
                self.assistant(item)
            elif isinstance(item, ResultsItem):
                self.results(item)
            else:
                self.native(item)
        return self.finish()

    @abstractmethod
    def system(self, item: SystemItem) -> None: ...

    @abstractmethod
    def user(self, item: UserItem) -> None: ...

    @abstractmethod
    def assistant(self, item: AssistantItem) -> None: ...

    @abstractmethod
    def results(self, item: ResultsItem) -> None: ...

    @abstractmethod
    def native(self, item: NativeItem) -> None: ...

    @abstractmethod
    def finish(self) -> Rendered: ...

    def notes_of_user(self, item: UserItem) -> Notes:
        """The notes of a user's row; a summary, a late result or a placeholder has none."""
        return read_notes(item.row.body.extra, self.format) if item.kind is UserKind.ROW and item.row else {}

    def notes_of_result(self, result: CallResult | None) -> Notes:
        """The notes of a result's row; a placeholder has none."""
        return read_notes(result.row.body.extra, self.format) if result is not None and result.row else {}

    def nothing_said(self, item: AssistantItem) -> None:
        self.losses.note("assistant messages of nothing that can be carried are left out", *item.offsets)

    def replacement(self, block: ContentBlock, place: Place, offsets: tuple[int, ...]) -> list[ContentBlock]:
        """What stands for a block that ``place`` cannot hold: its text, or nothing and a warning."""
        said, lost = as_text(block)
        if lost:
            self.losses.note(f"{place} messages: {lost}", *offsets)
        if said:
            return [TextBlock(said)]
        if said is not None:
            self.losses.note("empty texts are left out", *offsets)
        elif isinstance(block, ReasoningBlock):
            self.losses.note("reasoning of another format is left out", *offsets)
        elif isinstance(block, ServerToolBlock):
            self.losses.note("calls and results of provider-run tools are left out", *offsets)
        return []
