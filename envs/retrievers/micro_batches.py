"""Requests that arrive while a search runs are searched together in the next one, each distinct query once.

A request that finds the retriever idle starts at once: nothing ever waits for a batch to fill. Under load the batches
grow on their own, for more requests arrive during a longer search (as in Clipper, NSDI 2017, without its delay).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from sys import getsizeof
from typing import TYPE_CHECKING

from common.errors import RetrievalError, UserError
from envs.types import Hit

if TYPE_CHECKING:
    from envs.interfaces import Retriever  # imports torch, which a lexical server does not need


_OF_AN_ANSWER, _OF_A_HIT = 300, 200  # bytes of the objects around the texts


class Busy(RetrievalError):
    """As many requests wait as may."""


@dataclass(slots=True, eq=False)
class _Request:
    queries: Sequence[str]
    k: int
    answer: asyncio.Future[list[list[Hit]]]


class MicroBatches:
    """Searches of one retriever for many tasks of an event loop.

    A batch holds whole requests of one `k`, in the order of their arrival, with at most `max_batch` queries; a longer
    request is searched alone. With `max_batch` 1 no two requests share a search.

    An answer depends on its batch as far as the retriever's do: BM25's never; those of a neural encoder in the last
    bits of their scores, so that hits whose scores lie that close may change places.

    Args:
        retriever: where distinct queries go, in a thread.
        max_batch: queries searched together at most.
        concurrency: searches at the same time; above 1 the retriever must be thread-safe.
        queue: requests that may wait for a search.
        cached: answers kept in memory, by query and `k`; the one longest unused is dropped first.
        cached_bytes: their size at most.
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        max_batch: int,
        concurrency: int = 1,
        queue: int = 256,
        cached: int = 0,
        cached_bytes: int = 2**28,
    ) -> None:
        self._retriever = retriever
        self._max_batch, self._concurrency, self._queue = max_batch, concurrency, queue
        self._recent = _Recent(cached, cached_bytes)
        self._threads = ThreadPoolExecutor(concurrency, "search")
        self._waiting: deque[_Request] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits a query, best first. A call that is cancelled while it waits is never searched for.

        Raises:
            Busy: `queue` requests wait already.
            Exception: whatever the retriever raises.
        """
        if (known := self._recent.get(queries, k)) is not None:
            return known
        if len(self._running) == self._concurrency and len(self._waiting) >= self._queue:
            raise Busy(f"busy: {len(self._waiting)} requests are waiting")
        request = _Request(queries, k, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._start()
        try:
            return await request.answer
        except asyncio.CancelledError:
            with suppress(ValueError):  # its search has begun
                self._waiting.remove(request)
            raise

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._concurrency:
            task = asyncio.create_task(self._answer(list(self._take())))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.remove(task)
        self._start()

    def _take(self) -> Iterator[_Request]:
        """The requests of the next batch; those that it passes over keep their order."""
        room, k, passed = self._max_batch, self._waiting[0].k, []
        while self._waiting:
            request = self._waiting.popleft()
            if request.k != k:
                passed.append(request)
            elif room < self._max_batch and len(request.queries) > room:
                passed.append(request)
                break
            else:
                room -= len(request.queries)
                yield request
        self._waiting.extendleft(reversed(passed))

    async def _answer(self, batch: list[_Request]) -> None:
        """Search a batch; a bug that some query uncovers fails the request that holds it and no other."""
        try:
            found = await self._search(batch)
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, UserError):
                for request in batch:
                    await self._answer([request])
                return
            for request in batch:
                if not request.answer.done():
                    request.answer.set_exception(error)
            return
        for request in batch:
            if not request.answer.done():  # as it is where the call was cancelled meanwhile
                request.answer.set_result([list(found[query]) for query in request.queries])

    async def _search(self, batch: list[_Request]) -> dict[str, list[Hit]]:
        k = batch[0].k
        distinct = dict.fromkeys(query for request in batch for query in request.queries)
        known = {query: hits for query in distinct if (hits := self._recent.get([query], k)) is not None}
        missing = [query for query in distinct if query not in known]
        found = {query: hits for query, [hits] in known.items()}
        if missing:
            searched = asyncio.get_running_loop().run_in_executor(self._threads, self._retriever.search, missing, k)
            new = dict(zip(missing, await searched, strict=True))
            self._recent.put(new, k)
            found |= new
        return found


class _Recent:
    """The answers used last."""

    def __init__(self, entries: int, most_bytes: int) -> None:
        self._entries, self._most_bytes, self._bytes = entries, most_bytes, 0
        self._answers: OrderedDict[tuple[int, str], list[Hit]] = OrderedDict()

    def get(self, queries: Sequence[str], k: int) -> list[list[Hit]] | None:
        """The answers, if all are known."""
        if any((k, query) not in self._answers for query in queries):
            return None
        for query in queries:
            self._answers.move_to_end((k, query))
        return [list(self._answers[k, query]) for query in queries]

    def put(self, answers: dict[str, list[Hit]], k: int) -> None:
        new = {(k, query): hits for query, hits in answers.items() if (k, query) not in self._answers}
        self._answers.update(new)
        self._bytes += sum(_size(key[1], hits) for key, hits in new.items())
        while len(self._answers) > self._entries or self._bytes > self._most_bytes:
            (_, query), hits = self._answers.popitem(last=False)
            self._bytes -= _size(query, hits)


def _size(query: str, hits: list[Hit]) -> int:
    """Bytes in memory of an answer, nearly."""
    texts = (text for hit in hits for text in (hit.document.id, hit.document.title, hit.document.text))
    return _OF_AN_ANSWER + _OF_A_HIT * len(hits) + sum(map(getsizeof, (query, *texts)))
