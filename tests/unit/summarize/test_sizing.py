"""S4: a transcript is sized for the summarizing model's window: what gives way, in which order, and that all fits."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from foldline.domain.changes import replace
from foldline.domain.enums import FailureKind, Oversize, SourceBoundKind, SummarySource, TranscriptSource
from foldline.domain.folding import SourceBound, SummaryFailed
from foldline.domain.rows import (
    AssistantRow,
    CompactionSummaryRow,
    ImageBlock,
    InjectedContextRow,
    ModelRef,
    NoticeRow,
    ReasoningBlock,
    Row,
    TextBlock,
    TranscriptBlock,
)
from foldline.summarize.providers.sizes import UNKNOWN
from foldline.summarize.sizing import MAX_CHUNKS, Sized, chunks, trim
from foldline.summarize.transcript import Part, Rank, parts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.providers import Does, FakeProvider, summary_of
from tests.unit.summarize.asked import asking, count, failure, summarizer, taken, written
from tests.unit.summarize.talk import as_row, call, filler, result, rows, says, spoken, summarize, user


def part(offset: int, rank: Rank, text: str) -> Part:
    return Part(offset, rank, rank.name.lower(), text)


def words(number: int) -> str:
    return " ".join(f"word{n}" for n in range(number))


def transcript() -> list[Part]:
    """Two turns: a request, a long call and result, an answer; then the same again."""
    kinds = (Rank.REQUEST, Rank.TOOL, Rank.TOOL, Rank.CONTEXT)
    return [part(n + 1, kinds[n % 4], words((400, 30, 4000, 800)[n % 4])) for n in range(8)]


def size(sized: Sized) -> int:
    return count(sized.render())


def shown(sized: Sized, offset: int) -> int | None:
    """Characters of a part that are left; None for one that is gone."""
    found = [p for p in sized.parts if p.offset == offset]
    return None if not found else len(found[0].text) if found[0].limit is None else found[0].limit


class TestTrim:
    def test_what_fits_is_whole(self) -> None:
        parts = transcript()
        whole = count(Sized(tuple(parts), SourceBound()).render())
        assert trim(parts, whole, count) == Sized(tuple(parts), SourceBound())

    def test_tools_results_are_cut_to_2000_characters_first_the_oldest_before_the_others(self) -> None:
        parts = transcript()
        whole = count(Sized(tuple(parts), SourceBound()).render())
        sized = trim(parts, whole - 100, count)
        assert [shown(sized, p.offset) for p in parts] == [2000 if p.offset == 3 else len(p.text) for p in parts]
        assert sized.bound == SourceBound(SourceBoundKind.TRIMMED, through=3)
        sized = trim(parts, whole - int(1.5 * count(parts[2].text)), count)
        assert sized.bound.through == 7
        assert (shown(sized, 3), shown(sized, 7)) == (2000, 2000)

    def test_then_context_and_requests_last(self) -> None:
        parts = transcript()
        sized = trim(parts, 3200, count)
        assert [shown(sized, o) for o in (1, 5)] == [len(parts[0].text), len(parts[4].text)]
        assert shown(sized, 3) == 100
        assert shown(sized, 4) == 2000
        asked = [p for p in parts if p.rank == Rank.REQUEST]
        sized = trim(parts, count(Sized(tuple(asked), SourceBound()).render()) + 8, count)
        assert list(sized.parts) == asked
        assert sized.bound == SourceBound(SourceBoundKind.REQUESTS_ONLY, kept=2, of=2)

    def test_of_the_requests_the_newest_stays_to_the_end_and_the_first_nearly(self) -> None:
        parts = [part(n, Rank.REQUEST, words(300)) for n in range(1, 7)]
        least = count(replace(parts[0], limit=200).render())
        assert [p.offset for p in trim(parts, 7 * least, count).parts] == [1, 2, 3, 4, 5, 6]
        assert [p.offset for p in trim(parts, 3 * least + 12, count).parts] == [1, 5, 6]
        assert [p.offset for p in trim(parts, 2 * least + 12, count).parts] == [1, 6]
        sized = trim(parts, 60, count)
        assert [p.offset for p in sized.parts] == [6]
        assert sized.bound == SourceBound(SourceBoundKind.REQUESTS_ONLY, kept=1, of=6)

    def test_where_not_even_that_fits_it_says_so(self) -> None:
        with pytest.raises(SummaryFailed, match="the last request takes") as failed:
            trim(transcript(), 20, count)
        assert (failed.value.kind, failed.value.context_exceeded) == (FailureKind.SUMMARIZER_FAILED, True)

    def test_speech_that_nothing_measured_is_never_cut(self) -> None:
        parts = [*transcript(), part(9, Rank.SPEECH, words(100))]
        assert shown(trim(parts, 400, count), 9) == len(words(100))
        with pytest.raises(SummaryFailed) as failed:
            trim(parts, 150, count)
        assert failed.value.kind is FailureKind.UNMEASURED_TRANSCRIPT


CUT = ("openai", "openai_responses", "anthropic")
"""The APIs that llama.cpp serves."""


def cut(kind: str, given: int, wrote: int) -> dict[str, Any]:
    """How llama.cpp tells of an answer that it cut off, at its window's end or at what it was asked for."""
    said = summary_of("")
    if kind == "openai":
        usage = {"completion_tokens": wrote, "prompt_tokens": given, "total_tokens": given + wrote}
        choice = {"finish_reason": "length", "index": 0, "message": {"role": "assistant", "content": said}}
        return {"choices": [choice], "object": "chat.completion", "usage": usage}
    if kind == "openai_responses":
        usage = {"input_tokens": given, "output_tokens": wrote, "total_tokens": given + wrote}
        text = {"type": "output_text", "text": said, "annotations": [], "logprobs": []}
        item = {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
        return {"object": "response", "status": "completed", "output": [item], "usage": usage}
    usage = {"cache_read_input_tokens": given - 1, "input_tokens": 1, "output_tokens": wrote}
    content = [{"type": "text", "text": said}]
    return {"type": "message", "role": "assistant", "stop_reason": "max_tokens", "content": content, "usage": usage}


TEXTS = ["word ", "src/a/b.py:12 ", "ü€語", "\n", "x"]
PARTS = st.lists(
    st.tuples(
        st.sampled_from(Rank), st.sampled_from(["word ", "src/a/b.py:12 ", "ü€語", "\n", "x"]), st.integers(1, 900)
    ),
    min_size=1,
    max_size=14,
).map(lambda found: [part(n, rank, text * times) for n, (rank, text, times) in enumerate(found, 1)])


class TestProperties:
    @given(PARTS, st.integers(10, 4000))
    @settings(max_examples=50, deadline=None)
    def test_it_fits_or_fails_and_gives_way_in_order(self, parts: list[Part], room: int) -> None:
        """S4: whatever is cut, all that ranks below it is cut further or gone; the order of parts stays."""
        try:
            sized = trim(parts, room, count)
        except SummaryFailed as failed:
            least = trim(parts, 10**9, count)
            assert size(least) > room
            assert failed.context_exceeded or any(p.rank == Rank.SPEECH for p in parts)
            return
        assert size(sized) <= room
        offsets = [p.offset for p in sized.parts]
        assert offsets == sorted(offsets)
        assert sized == trim(parts, room, count)
        by_rank = {rank: [shown(sized, p.offset) for p in parts if p.rank == rank] for rank in Rank}
        full = {rank: [len(p.text) for p in parts if p.rank == rank] for rank in Rank}
        assert by_rank[Rank.SPEECH] == full[Rank.SPEECH]
        touched = {rank for rank in Rank if by_rank[rank] != full[rank]}
        if touched & {Rank.NOTICE, Rank.REQUEST}:
            assert by_rank[Rank.TOOL] == [None] * len(full[Rank.TOOL])
            assert by_rank[Rank.CONTEXT] == [None] * len(full[Rank.CONTEXT])
        if Rank.REQUEST in touched:
            assert by_rank[Rank.NOTICE] == [None] * len(full[Rank.NOTICE])
            assert by_rank[Rank.REQUEST][-1] is not None
        if Rank.CONTEXT in touched:
            assert all((left or 0) <= 100 for left in by_rank[Rank.TOOL])
        assert (sized.bound.kind is SourceBoundKind.WHOLE) == (not touched)

    @given(PARTS, st.integers(60, 800))
    @settings(max_examples=50, deadline=None)
    def test_chunks_fit_and_are_few(self, parts: list[Part], room: int) -> None:
        """S4: every chunk fits; where nothing had to be trimmed first, the chunks hold every character in order."""
        try:
            made = chunks(parts, room, count)
        except SummaryFailed:
            return
        assert len(made) <= MAX_CHUNKS
        assert all(size(chunk) <= room for chunk in made)
        if all(p.limit is None for chunk in made for p in chunk.parts):
            rejoined: dict[int, str] = {}
            for chunk in made:
                for one in chunk.parts:
                    rejoined[one.offset] = rejoined.get(one.offset, "") + one.text
            assert rejoined == {p.offset: p.text for p in parts if p.offset in rejoined}
        order = [p.offset for chunk in made for p in chunk.parts]
        assert all(a <= b for a, b in pairwise(order))


class TestParts:
    def test_rows_become_parts_without_reasoning_and_with_media_named(self) -> None:
        source = rows(
            user("Look at this."),
            AssistantRow(
                (
                    ReasoningBlock("a secret plan"),
                    TextBlock("<think>hidden</think>Looking."),
                    call("c1", "read", path="a"),
                )
            ),
            result("c1", "it broke", failed=True),
            NoticeRow((TextBlock("disk full"),), kind="monitor"),
            InjectedContextRow((TextBlock("it is Tuesday"),)),
            AssistantRow((ImageBlock(mime_type="image/png", data="aGk="),)),
            spoken("spoken words"),
            AssistantRow((TranscriptBlock("measured words", TranscriptSource.SPOKEN),)),
        )
        told = [(p.offset, p.rank, p.title, p.text) for p in parts_of(source, lambda text: text)]
        assert told == [
            (1, Rank.REQUEST, "user", "Look at this."),
            (2, Rank.CONTEXT, "assistant", "Looking."),
            (2, Rank.TOOL, "assistant calls read", '{"path": "a"}'),
            (3, Rank.TOOL, "result of read (failed)", "it broke"),
            (4, Rank.NOTICE, "notice monitor", "disk full"),
            (5, Rank.CONTEXT, "context", "it is Tuesday"),
            (6, Rank.CONTEXT, "assistant", "[image image/png]"),
            (7, Rank.SPEECH, "assistant, spoken", "spoken words"),
            (8, Rank.CONTEXT, "assistant", "measured words"),
        ]

    def test_a_result_whose_call_is_elsewhere_names_none(self) -> None:
        assert [p.title for p in parts_of(rows(result("c9", "late")), str)] == ["result of an earlier call"]


class TestWindow:
    """Against a provider at the wire: no request that cannot fit is ever made."""

    LONG = rows(*filler(60), user("Now summarize src/parser/part_59.py."), says("Done with it."))

    @pytest.mark.parametrize(
        ("model", "factor", "counts"), [("m", None, UNKNOWN), ("m", 1.2, 1.2), ("gpt-4o", None, 1.0)]
    )
    def test_a_model_of_an_unknown_vocabulary_counts_more_than_we_do(
        self, model: str, factor: float | None, counts: float, fake: FakeProvider
    ) -> None:
        """What a host's requests taught is known of it (4.5)."""
        written(fake, self.LONG, window=9000, budget=600, model=ModelRef("p", model), factor=factor)
        (request,) = fake.received
        size = partial(count, model=ModelRef("p", model))
        asked = size(request.system) + size(request.user)
        assert 0.85 * (9000 - request.most) < counts * asked <= 9000 - request.most

    def test_what_an_answer_or_a_refusal_said_sizes_the_next_summary(self, fake: FakeProvider) -> None:
        """S4, XB1: the model counts twice as much; then a server says that it takes less than the settings say."""
        source, request = summarizer(fake), asking(self.LONG, window=9000, budget=600)
        source.summarize(request)
        first = len(fake.received[0].user)
        size = count(fake.received[0].system) + count(fake.received[0].user)
        said = summary_of(fake.received[0].user)
        choice = {"message": {"content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 2 * size, "completion_tokens": 100, "total_tokens": 2 * size + 100}
        fake.script = [Does(body=json.dumps({"choices": [choice], "usage": usage}).encode())]
        source.summarize(request)
        source.summarize(request)
        assert len(fake.received[2].user) < 0.8 * first
        error = {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096}
        fake.script = [Does("context_exceeded", body=json.dumps({"error": error}).encode())]
        failed = failure(source, request)
        assert failed.context_exceeded
        assert "it has 5000 tokens, there is room for 4096 tokens" in failed.detail, "XB10: both numbers"
        source.summarize(request)
        fourth = fake.received[4]
        assert 2 * (count(fourth.system) + count(fourth.user)) + fourth.most <= 4096

    @pytest.mark.parametrize("kind", CUT)
    def test_an_answer_that_filled_the_window_says_what_that_is(self, kind: str, fake: FakeProvider) -> None:
        """S4, S7: llama.cpp ends it like one that took every token it was given; its Responses call it complete."""
        source, request = summarizer(fake, kind), asking(self.LONG, window=8000, budget=600, factor=1.0)
        fake.script = [Does(body=json.dumps(cut(kind, 1800, 248)).encode())]
        failed = failure(source, request)
        assert (failed.kind, failed.context_exceeded) == (FailureKind.SUMMARY_REJECTED, True)
        assert failed.detail == "p ran into the end of its context window"
        assert failed.usage is not None
        assert (failed.usage.input_tokens, failed.usage.output_tokens) == (1800, 248)
        source.summarize(request)
        assert taken(fake)[1] <= 2048 < taken(fake)[0]

    @pytest.mark.parametrize(("given", "wrote"), [(1800, 249), (1448, 600)], ids=["at-no-page", "all-it-was-given"])
    @pytest.mark.parametrize("kind", CUT)
    def test_an_answer_that_was_cut_off_elsewhere_says_nothing_of_the_window(
        self, kind: str, given: int, wrote: int, fake: FakeProvider
    ) -> None:
        source, request = summarizer(fake, kind, max_output=600), asking(self.LONG, window=8000, factor=1.0)
        fake.script = [Does(body=json.dumps(cut(kind, given, wrote)).encode())]
        if kind == "openai_responses" and wrote < 600:
            assert source.summarize(request).text
        else:
            failed = failure(source, request)
            assert (failed.detail, failed.context_exceeded) == ("p stopped at its length limit", False)
        source.summarize(request)
        assert taken(fake)[1] > 2048

    def test_openais_own_responses_are_taken_at_their_word(self, fake: FakeProvider) -> None:
        body = {**cut("openai_responses", 1800, 248), "incomplete_details": None}
        fake.script = [Does(body=json.dumps(body).encode())]
        assert summarizer(fake, "openai_responses").summarize(asking(self.LONG, window=8000)).text

    @pytest.mark.parametrize("budget", [256, 4096])
    @pytest.mark.parametrize("window", [2048, 3000, 6000])
    def test_a_small_window_is_shared_by_what_came_before_and_what_folds(
        self, window: int, budget: int, fake: FakeProvider
    ) -> None:
        """S4, XB1: neither an earlier summary nor instructions nor what the user requires can crowd out the rows."""
        required = [user(f"You must never touch file_{n}.py, whatever else happens in this project.") for n in range(9)]
        earlier = as_row(summarize(rows(*filler(80)), budget=4000))
        source = rows(*required, *filler(60), user("Now summarize src/parser/part_59.py."), says("Done with it."))
        outcome = written(
            fake, source, earlier=[earlier], instructions="Mind the tests. " * 900, window=window, budget=budget
        )
        assert taken(fake)[0] <= window
        asked = fake.received[0].user
        assert "Now summarize src/parser/part_59.py." in asked
        assert "<earlier_summary" in asked
        assert all(f"file_{n}.py" in outcome.text for n in range(9)) or budget == 256

    @given(st.integers(900, 6000), st.integers(0, 6000), st.integers(0, 4000), st.integers(200, 5000))
    @settings(max_examples=40, deadline=None)
    def test_whatever_must_be_told_a_call_fits_or_is_not_made(
        self, window: int, before: int, instructions: int, budget: int
    ) -> None:
        """S4: and a window that has room for the prompt and a little more always has room for a call."""
        earlier = [CompactionSummaryRow("word " * before, "", source=SummarySource.PROVIDER)]
        with FakeProvider() as fake:
            try:
                written(fake, self.LONG, earlier=earlier, instructions="mind " * instructions, window=window,
                        budget=budget)  # fmt: skip
            except SummaryFailed as failed:
                assert (failed.context_exceeded, fake.calls) == (True, 0), failed.detail
                assert window < 2048
                return
            (tokens,) = taken(fake)
            assert tokens <= window

    @pytest.mark.parametrize("oversize", Oversize)
    @pytest.mark.parametrize("window", [3000, 5000, 9000, 20_000])
    def test_every_request_fits_with_its_answer(self, window: int, oversize: Oversize, fake: FakeProvider) -> None:
        outcome = written(fake, self.LONG, window=window, oversize=oversize, budget=600, factor=1.0)
        assert all(tokens <= window for tokens in taken(fake))
        kind = SourceBoundKind.TRIMMED if oversize is Oversize.TRIM else SourceBoundKind.MAPPED
        whole = window == 20_000
        assert outcome.bound.kind is (SourceBoundKind.WHOLE if whole else kind)
        assert (fake.calls == 1) == (whole or oversize is Oversize.TRIM)

    @pytest.mark.parametrize("oversize", Oversize)
    def test_a_window_too_small_for_anything_costs_nothing(self, oversize: Oversize, fake: FakeProvider) -> None:
        failed = failure(summarizer(fake), asking(self.LONG, window=900, oversize=oversize))
        assert (failed.context_exceeded, fake.calls) == (True, 0)

    def test_the_settings_window_holds_where_it_is_smaller(self, fake: FakeProvider) -> None:
        outcome = summarizer(fake, window=5000).summarize(asking(self.LONG, window=200_000, budget=600))
        assert outcome.bound.kind is SourceBoundKind.TRIMMED
        assert taken(fake)[0] <= 5000

    def test_a_large_earlier_summary_and_long_instructions_leave_room(self, fake: FakeProvider) -> None:
        earlier = as_row(summarize(rows(*filler(80)), budget=4000))
        written(fake, self.LONG, earlier=[earlier], instructions="Mind the tests. " * 900, window=6000, budget=600)
        assert taken(fake)[0] <= 6000

    def test_all_parts_of_a_long_transcript_are_read_and_merged(self, fake: FakeProvider) -> None:
        """S4, MAP: chunks in order, each row in one of them, one merge, their usage together (S5)."""
        outcome = written(fake, self.LONG, window=5000, oversize=Oversize.MAP, budget=600)
        maps = [r.user for r in fake.received if "This is part" in r.user]
        merges = [r.user for r in fake.received if "Merge these" in r.user]
        assert len(maps) == outcome.bound.chunks > 2
        assert merges
        assert len(maps) + len(merges) == fake.calls
        for row in self.LONG:
            assert sum(f"[#{row.offset}] " in text for text in maps) >= 1
        assert outcome.usage is not None
        assert outcome.usage.output_tokens == sum(len(summary_of(text)) // 4 + 1 for text in (*maps, *merges))

    def test_one_part_that_fails_fails_all_and_says_what_all_used(self, fake: FakeProvider) -> None:
        fake.script = [Does(), Does("length")]
        failed = failure(summarizer(fake), asking(self.LONG, window=5000, oversize=Oversize.MAP, budget=600))
        assert failed.kind is FailureKind.SUMMARY_REJECTED
        assert failed.usage is not None
        assert failed.usage.output_tokens

    def test_the_same_rows_are_asked_for_in_the_same_words(self, fake: FakeProvider) -> None:
        for oversize in Oversize:
            asked = []
            for _ in range(2):
                fake.received.clear()
                written(fake, self.LONG, window=5000, oversize=oversize, budget=600)
                asked.append(sorted(r.user for r in fake.received))
            assert asked[0] == asked[1]


def test_rows_that_hold_nothing_to_read_make_an_empty_transcript() -> None:
    assert parts_of([Row(1, AssistantRow((ReasoningBlock("only thought"),)))], str) == []
