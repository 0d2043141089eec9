"""Calls that can take long run detached: another Python thread goes on meanwhile."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from foldline import _core
from foldline.domain.rows import TextBlock, UserRow, encode_body

LETTERS = "".join(random.Random(8).choices("abcdefghijklmnopqrstuvwxyz", k=1 << 20))
PROSE = "The quick brown fox jumps over the lazy dog. " * 20_000
ROW = encode_body(UserRow(content=(TextBlock(LETTERS),)))
HUGE = bytes(300_000_000)

CALLS: dict[str, Callable[[], object]] = {
    "count_tokens": lambda: _core.count_tokens(LETTERS * 8, "o200k_base"),
    "tokens_within": lambda: _core.tokens_within([LETTERS] * 8, 1 << 30, 0, "o200k_base"),
    "weighted_tokens": lambda: _core.weighted_tokens(PROSE * 60),
    "measure_rows": lambda: _core.measure_rows([ROW] * 8, "cl100k_base"),
    "shorten_many": lambda: _core.shorten_many([(LETTERS, (None, None, 100_000), "", "")] * 5, "o200k_base", True),
    "ascii_terms": lambda: _core.ascii_terms(PROSE * 40, 1),
    "Words": lambda: _core.Words([PROSE] * 50),
    "digest_rows": lambda: _core.digest_rows([1], [HUGE]),
    "chain": lambda: _core.chain(bytes(32), 1, [HUGE]),
}


@pytest.mark.parametrize("name", CALLS)
def test_another_thread_progresses_during_a_long_call(name: str) -> None:
    call, ticks, done = CALLS[name], [time.perf_counter()], threading.Event()

    def tick() -> None:
        while not done.is_set():
            now = time.perf_counter()
            if now - ticks[-1] > 0.001:
                ticks.append(now)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        start = time.perf_counter()
        call()
        end = time.perf_counter()
    finally:
        done.set()
        thread.join()
    inside = [start, *(at for at in ticks if start < at < end), end]
    longest = max(after - before for before, after in pairwise(inside))
    assert longest < (end - start) / 2, f"no other thread ran for {longest:.3f} of {end - start:.3f} s"


def test_counts_of_many_threads_agree() -> None:
    texts = [LETTERS[at : at + 5_000] + PROSE[at : at + 20_000] for at in range(0, 64_000, 1_000)]
    alone = [_core.count_tokens(text, "o200k_base") for text in texts]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda text: _core.count_tokens(text, "o200k_base"), texts * 4)) == alone * 4


def test_a_ledger_is_shared_between_threads() -> None:
    ledger = _core.Ledger()

    def append(run: int) -> None:
        for offset in range(200):
            ledger.append([offset], b"\x01", [run], [0], [2], [3])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, range(8)))
    assert (len(ledger), ledger.total_tokens(), ledger.total_bytes()) == (1_600, 3_200, 4_800)
    assert [ledger.totals_by_run(run) for run in range(8)] == [(200, 400, 600)] * 8
