"""Requests that wait for a search share the next one; each answer is that of its own query."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from common.errors import RetrievalError
from envs.retrievers.micro_batches import Busy, MicroBatches, _Recent, _size
from envs.types import Document, Hit


class Held:
    """Answers a query with `k` hits that name it; the first search waits until it is let go."""

    def __init__(self) -> None:
        self.searches: list[tuple[list[str], int]] = []
        self.go = threading.Event()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.searches.append((list(queries), k))
        assert self.go.wait(10)
        for query in queries:
            if query == "bug":
                raise ZeroDivisionError(query)
            if query == "down":
                raise RetrievalError("the index is gone")
        return [hits(query, k) for query in queries]


def hits(query: str, k: int) -> list[Hit]:
    return [Hit(Document(f"{query}-{rank}", query, ""), float(-rank)) for rank in range(k)]


def ask(batches: MicroBatches, held: Held, *requests: tuple[list[str], int]) -> list:
    """Let `requests` arrive one after the other during the search of the first; their answers or errors."""

    async def go() -> list:
        tasks = []
        for queries, k in requests:
            tasks.append(asyncio.ensure_future(batches.search(queries, k)))
            while not held.searches:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)  # the request has joined the queue
        held.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(go())


@pytest.mark.parametrize(("room", "kept"), [(2, 2), (1.99, 1), (1, 1), (0.99, 0), (9, 3)])
def test_the_answers_kept_have_a_size_in_bytes(room: float, kept: int) -> None:
    """An answer of 10 texts of 10,000 characters, in Latin letters or, four times as large, in others."""

    class Long:
        searched = 0

        def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            self.searched += len(queries)
            return [[Hit(Document(str(n), "", letter * 10_000)) for n in range(k)] for letter in queries]

    async def search(batches: MicroBatches, *queries: str) -> None:
        for query in queries:
            await batches.search([query], 10)

    for letters, size in (("abc", 10_000), ("\U00010300\U00010301\U00010302", 40_000)):
        retriever = Long()
        batches = MicroBatches(retriever, max_batch=1, cached=9, cached_bytes=int(room * (10 * size + 4200)))
        asyncio.run(search(batches, *letters))
        assert retriever.searched == 3
        asyncio.run(search(batches, *reversed(letters)))
        assert retriever.searched == 3 + 3 - kept
        assert 0 <= batches._recent._bytes <= room * (10 * size + 4200)


@pytest.mark.parametrize(("less", "searches"), [(0, 1), (1, 2)])
def test_an_answer_may_take_just_as_many_bytes_as_are_kept(less: int, searches: int) -> None:
    held = Held()
    held.go.set()
    batches = MicroBatches(held, max_batch=1, cached=9, cached_bytes=_size("a", hits("a", 3)) - less)
    for _ in range(2):
        assert asyncio.run(batches.search(["a"], 3)) == [hits("a", 3)]
    assert len(held.searches) == searches


def test_every_text_of_an_answer_counts_once() -> None:
    long, recent = "x" * 10_000, _Recent(9, 2**20)
    for _ in range(2):  # as two searches at once find it
        recent.put({long: [Hit(Document(long, long, long), 1.0)] * 2}, 2)
    assert recent._bytes == pytest.approx(7 * 10_000, rel=0.02)


def test_what_arrives_during_a_search_shares_the_next_one() -> None:
    held = Held()
    requests = [(["a"], 2), (["b", "c"], 2), (["d"], 2), (["e"], 2)]
    answers = ask(MicroBatches(held, max_batch=8), held, *requests)
    assert held.searches == [(["a"], 2), (["b", "c", "d", "e"], 2)]
    assert answers == [[hits(query, k) for query in queries] for queries, k in requests]


def test_a_call_that_is_cancelled_while_it_waits_is_not_searched_for() -> None:
    held = Held()

    async def go() -> list:
        batches = MicroBatches(held, max_batch=8, queue=2)
        tasks = []
        for query in ("a", "b", "c"):
            tasks.append(asyncio.ensure_future(batches.search([query], 1)))
            while not held.searches:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[1].cancel()
        await asyncio.sleep(0)
        tasks.append(asyncio.ensure_future(batches.search(["d"], 1)))
        await asyncio.sleep(0)
        held.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(go())
    assert held.searches == [(["a"], 1), (["c", "d"], 1)]
    assert [type(answer) for answer in answers[:2]] == [asyncio.CancelledError] * 2
    assert answers[2:] == [[hits("c", 1)], [hits("d", 1)]], "it left room in the queue"


def test_a_batch_ends_before_the_request_that_does_not_fit() -> None:
    held = Held()
    requests = [(["a"], 1), (["b"], 1), (["c", "d"], 1), (["e"], 1), (["f", "g", "h", "i"], 1), (["j"], 1)]
    answers = ask(MicroBatches(held, max_batch=3), held, *requests)
    assert [search for search, _ in held.searches] == [["a"], ["b", "c", "d"], ["e"], ["f", "g", "h", "i"], ["j"]]
    assert answers == [[hits(query, k) for query in queries] for queries, k in requests]


def test_without_batching_every_request_is_searched_alone() -> None:
    held = Held()
    ask(MicroBatches(held, max_batch=1), held, (["a"], 1), (["b"], 1), (["c", "d"], 1), (["e"], 1))
    assert [search for search, _ in held.searches] == [["a"], ["b"], ["c", "d"], ["e"]]


def test_a_batch_has_one_k_and_requests_of_another_keep_their_order() -> None:
    held = Held()
    requests = [(["a"], 1), (["b"], 1), (["c"], 5), (["d"], 5), (["e"], 1)]
    answers = ask(MicroBatches(held, max_batch=8), held, *requests)
    assert held.searches == [(["a"], 1), (["b", "e"], 1), (["c", "d"], 5)]
    assert [len(answer[0]) for answer in answers] == [1, 1, 5, 5, 1]


def test_a_query_that_several_ask_for_is_searched_once() -> None:
    held = Held()
    answers = ask(MicroBatches(held, max_batch=8), held, (["a"], 1), (["b", "c", "b"], 1), (["c"], 1))
    assert held.searches == [(["a"], 1), (["b", "c"], 1)]
    assert answers[1:] == [[hits(query, 1) for query in "bcb"], [hits("c", 1)]]


def test_the_answers_used_last_are_kept_by_query_and_k() -> None:
    held = Held()
    held.go.set()
    batches = MicroBatches(held, max_batch=8, cached=2)

    def asked(*requests: tuple[list[str], int]) -> list[tuple[list[str], int]]:
        held.searches.clear()

        async def go() -> None:
            for queries, k in requests:
                assert await batches.search(queries, k) == [hits(query, k) for query in queries]

        asyncio.run(go())
        return held.searches

    assert asked((["a", "b"], 1), (["b", "a"], 1)) == [(["a", "b"], 1)]
    assert asked((["a"], 2)) == [(["a"], 2)]  # b, unused for longest, has gone
    assert asked((["a"], 1), (["a", "b"], 1)) == [(["b"], 1)]
    assert asked((["a"], 2)) == [(["a"], 2)]


def test_an_answer_that_is_changed_does_not_change_the_kept_one() -> None:
    held = Held()
    held.go.set()
    batches = MicroBatches(held, max_batch=8, cached=2)
    asyncio.run(batches.search(["a"], 2))[0].clear()
    asyncio.run(batches.search(["a"], 2))[0].clear()
    assert asyncio.run(batches.search(["a"], 2)) == [hits("a", 2)]


def test_a_bug_fails_its_own_request_alone() -> None:
    held = Held()
    answers = ask(MicroBatches(held, max_batch=8), held, (["a"], 1), (["b"], 1), (["bug"], 1), (["c"], 1))
    assert [type(answer) for answer in answers] == [list, list, ZeroDivisionError, list]
    assert answers[3] == [hits("c", 1)]


def test_a_retriever_that_is_down_is_not_asked_again_for_each_request() -> None:
    held = Held()
    answers = ask(MicroBatches(held, max_batch=8), held, (["a"], 1), (["b"], 1), (["down"], 1), (["c"], 1))
    assert [search for search, _ in held.searches] == [["a"], ["b", "down", "c"]]
    assert [str(answer) for answer in answers[1:]] == ["the index is gone"] * 3


def test_a_full_queue_refuses_but_still_gives_what_is_kept() -> None:
    held = Held()
    held.go.set()
    batches = MicroBatches(held, max_batch=1, queue=1, cached=4)
    asyncio.run(batches.search(["known"], 1))
    held.go.clear()
    held.searches.clear()
    answers = ask(batches, held, (["a"], 1), (["b"], 1), (["c"], 1), (["known"], 1))
    assert [type(answer) for answer in answers] == [list, list, Busy, list]
    assert answers[3] == [hits("known", 1)]


def test_a_client_that_leaves_takes_no_answer_from_others() -> None:
    held = Held()
    batches = MicroBatches(held, max_batch=8)

    async def go() -> list:
        tasks = [asyncio.ensure_future(batches.search([query], 1)) for query in "abc"]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        held.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, second, third = asyncio.run(go())
    assert (first, third) == ([hits("a", 1)], [hits("c", 1)])
    assert isinstance(second, asyncio.CancelledError)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_searches_than_allowed_run_at_once(concurrency: int) -> None:
    held = Held()
    batches = MicroBatches(held, max_batch=1, concurrency=concurrency)

    async def go() -> None:
        tasks = [asyncio.ensure_future(batches.search([query], 1)) for query in "abcde"]
        while len(held.searches) < concurrency:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        assert len(held.searches) == concurrency
        held.go.set()
        assert await asyncio.gather(*tasks) == [[hits(query, 1)] for query in "abcde"]

    asyncio.run(go())
