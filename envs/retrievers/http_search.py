"""The base of retrievers behind an HTTP API: distinct queries in batches, retries, answers kept in a file."""

from __future__ import annotations

import math
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence

import httpx

from common.bounded_http import BoundedHTTP, HTTPFailure
from common.errors import ConfigError, RetrievalError
from common.seeds import stable_hash
from envs.retrievers.cache import QueryCache
from envs.types import Hit


class HTTPSearch(ABC):
    """Searches through a server.

    Connection errors, timeouts (no complete answer in `timeout` seconds), 429 and 5xx are retried up to `retries`
    times, after `backoff` seconds, doubled each time, or after the server's `Retry-After`. Queries are sent
    `batch_size` at a time, each distinct one once, cut to `max_query_chars`: a policy may sample a query of any length,
    and servers reject long ones. `cache` is a file with the answers by backend, k and query (`QueryCache`).

    Args:
        what: the server's name in messages.
        key: sent in the header `key_header`, or, without one, by the class itself; never shown.

    Raises:
        ConfigError: `url` is not an http or https address, a number is out of range, or a proxy of the environment is
            unusable.
    """

    def __init__(
        self,
        url: str,
        *,
        what: str,
        timeout: float,
        retries: int,
        backoff: float,
        batch_size: int,
        max_query_chars: int,
        cache: str | None,
        key: str = "",
        key_header: str = "Authorization",
    ) -> None:
        if (
            not (math.isfinite(timeout) and math.isfinite(backoff))
            or timeout <= 0
            or retries < 0
            or backoff < 0
            or batch_size < 1
            or max_query_chars < 1
        ):
            raise ConfigError(
                f"{what}: timeout, batch_size and max_query_chars must be positive, retries and backoff not negative"
            )
        self._http = BoundedHTTP(url, what=what, key=key, key_header=key_header)
        self.url, self._what = self._http.address, what
        self.timeout, self.retries, self.backoff = timeout, retries, backoff
        self.batch_size, self.max_query_chars = batch_size, max_query_chars
        self._cache = QueryCache(cache) if cache else None
        self._waits = 0

    @property
    @abstractmethod
    def identity(self) -> str:
        """The backend, a text that differs wherever answers may."""

    @abstractmethod
    def _ask(self, queries: Sequence[str], k: int) -> dict[str, list[Hit]]:
        """The server's hits of some distinct queries."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits a query, best first, in the server's order.

        Raises:
            RejectedError: the server rejects the request.
            RetrievalError: the server is down after all tries, or its answer is malformed.
        """
        queries = [query[: self.max_query_chars] for query in queries]
        distinct = list(dict.fromkeys(queries))
        answers = self._cache.get(self.identity, k, distinct) if self._cache else {}
        missing = [query for query in distinct if query not in answers]
        for start in range(0, len(missing), self.batch_size):
            found = self._ask(missing[start : start + self.batch_size], k)
            if self._cache:
                self._cache.put(self.identity, k, found)
            answers |= found
        return [list(answers[query]) for query in queries]

    def _request(self, method: str, path: str, body: object = None) -> httpx.Response:
        """Send until there is an answer that a retry would not change."""

        def send() -> httpx.Response:
            return self._http.send(method, path, body, timeout=self.timeout)

        try:
            return self._http.settled(send, self.retries, self._pause)
        except HTTPFailure as error:
            raise self._error(path, str(error)) from error

    def _pause(self, tries: int) -> float:
        """Seconds to wait, with a jitter of each process so that they do not retry at the same moment."""
        self._waits += 1
        jitter = stable_hash(socket.gethostname(), os.getpid(), self._waits) / 2**63
        return self.backoff * 2 ** (tries - 1) * (0.5 + jitter)

    def _error(self, path: str, problem: str) -> RetrievalError:
        where = path.partition("?")[0]
        return RetrievalError(f"{self._what} {self.url}{where}: {self._http.secrets.shown(problem)}")
