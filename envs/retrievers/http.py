"""Search through any server of the common `/retrieve` API."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Sequence

import httpx

from common.bounded_http import BoundedHTTP, HTTPFailure, parsed_address
from common.errors import ConfigError, RejectedError, RetrievalError
from common.seeds import stable_hash
from envs.retrievers.cache import QueryCache
from envs.retrievers.wire import read_result
from envs.types import Hit


class HTTPRetriever:
    """The retriever behind `url`, the root of a server or its `/retrieve` endpoint.

    Connection errors, timeouts (no complete answer in `timeout` seconds), 429 and 5xx are retried up to `retries`
    times, after `backoff` seconds, doubled each time, or after the server's `Retry-After`. Queries are sent
    `batch_size` at a time, each distinct one once, cut to `max_query_chars`: a policy may sample a query of any length,
    and servers reject long ones. `cache` is a file with the answers by backend, k and query (`QueryCache`).

    Raises:
        ConfigError: `url` is not an http or https address, a number is out of range, or a proxy of the environment is
            unusable.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        retries: int = 4,
        backoff: float = 0.5,
        batch_size: int = 64,
        max_query_chars: int = 4096,
        cache: str | None = None,
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
                "retrieval server: timeout, batch_size and max_query_chars must be positive, "
                "retries and backoff not negative"
            )
        parsed_address(url, "retrieval server")
        self._http = BoundedHTTP(url.rstrip("/").removesuffix("/retrieve"), what="retrieval server")
        self.url = self._http.address
        self.timeout, self.retries, self.backoff = timeout, retries, backoff
        self.batch_size, self.max_query_chars = batch_size, max_query_chars
        self._cache = QueryCache(cache) if cache else None
        self._backend: str | None = None
        self._checked = False
        self._waits = 0

    @property
    def identity(self) -> str:
        """The backend that `GET /health` names, else the URL; while the server is down, the last one in the cache.

        Requested once: a server must keep its backend as long as a client runs.

        Raises:
            RetrievalError: the server is down and the cache does not know it.
        """
        if self._backend is None:
            try:
                self.check()
            except RetrievalError:
                self._backend = self._cache.backend(self.url) if self._cache else None
                if self._backend is None:
                    raise
        assert self._backend is not None
        return self._backend

    def check(self) -> None:
        """Request the server's health.

        Raises:
            RetrievalError: it is down.
        """
        response = self._request("GET", "/health")
        self._backend, self._checked = _named_backend(response) or self.url, True
        if self._cache:
            self._cache.remember(self.url, self._backend)

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
            answers |= self._ask(missing[start : start + self.batch_size], k)
        return [list(answers[query]) for query in queries]

    def _ask(self, queries: Sequence[str], k: int) -> dict[str, list[Hit]]:
        if self._cache and not self._checked:
            self.check()  # store no answer under a backend read from the cache alone
        response = self._request("POST", "/retrieve", {"queries": queries, "topk": k, "return_scores": True})
        if not response.is_success:
            raise RejectedError(str(self._error("/retrieve", f"answered {self._http.summary(response)}")))
        try:
            answers = dict(zip(queries, read_result(response.json(), len(queries), k), strict=True))
        except (ValueError, RecursionError) as error:
            raise self._error("/retrieve", f"malformed answer: {error}") from error
        if self._cache:
            self._cache.put(self.identity, k, answers)
        return answers

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
        return RetrievalError(f"retrieval server {self.url}{path}: {self._http.secrets.shown(problem)}")


def _named_backend(response: httpx.Response) -> str | None:
    try:
        payload = response.json()
    except ValueError:
        return None
    backend = payload.get("backend") if response.is_success and isinstance(payload, dict) else None
    return backend if isinstance(backend, str) else None
