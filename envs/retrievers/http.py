"""Search through any server of the common `/retrieve` API."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import time
from collections.abc import Sequence

import httpx

from common.errors import ConfigError, RejectedError, RetrievalError
from common.seeds import stable_hash
from envs.retrievers.cache import QueryCache
from envs.retrievers.wire import read_result
from envs.types import Hit

_LONGEST_WAIT = 60.0  # seconds between two tries, also where `Retry-After` is longer


class HTTPRetriever:
    """The retriever behind `url`, the root of a server or its `/retrieve` endpoint.

    Connection errors, timeouts (no complete answer in `timeout` seconds), 429 and 5xx are retried up to `retries`
    times, after `backoff` seconds, doubled each time, or after the server's `Retry-After`. Queries are sent
    `batch_size` at a time, each distinct one once, cut to `max_query_chars`: a policy may sample a query of any length,
    and servers reject long ones. `cache` is a file with the answers by backend, k and query (`QueryCache`).

    Raises:
        ConfigError: `url` is not an http or https address, a number is out of range, or the environment sets a proxy
            that cannot be used.
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
        if not _is_address(url):
            raise ConfigError(f"retrieval server {url!r}: give an address like http://127.0.0.1:8000")
        if timeout <= 0 or retries < 0 or backoff < 0 or batch_size < 1 or max_query_chars < 1:
            raise ConfigError(
                "retrieval server: timeout, batch_size and max_query_chars must be positive, "
                "retries and backoff not negative"
            )
        self.url = url.rstrip("/").removesuffix("/retrieve")
        self.timeout, self.retries, self.backoff = timeout, retries, backoff
        self.batch_size, self.max_query_chars = batch_size, max_query_chars
        try:
            self._client = httpx.Client(timeout=timeout, trust_env=not _is_local(url))  # no proxy to this machine
        except (ImportError, ValueError) as error:  # what the variables of the environment say cannot be done
            raise ConfigError(f"retrieval server {url}: proxy of the environment (ALL_PROXY): {error}") from error
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
            raise RejectedError(str(self._error("/retrieve", f"answered {_summary(response)}")))
        try:
            answers = dict(zip(queries, read_result(response.json(), len(queries), k), strict=True))
        except (ValueError, RecursionError) as error:
            raise self._error("/retrieve", f"malformed answer: {error}") from error
        if self._cache:
            self._cache.put(self.identity, k, answers)
        return answers

    def _request(self, method: str, path: str, body: object = None) -> httpx.Response:
        """Send until there is an answer that a retry would not change."""
        failure = ""
        for tries in range(1, self.retries + 2):
            retry_after = 0.0
            try:
                response = self._send(method, self.url + path, body)
                if not _should_retry(response.status_code):
                    return response
                failure, retry_after = _summary(response), _retry_after(response)
            except httpx.TransportError as error:
                failure = str(error) or type(error).__name__
            except httpx.HTTPError as error:
                raise self._error(path, str(error)) from error
            if tries <= self.retries:
                time.sleep(min(max(self._pause(tries), retry_after), _LONGEST_WAIT))
        raise self._error(path, f"gave up after try {self.retries + 1}: {failure}")

    def _send(self, method: str, url: str, body: object) -> httpx.Response:
        """One try, limited as a whole: httpx limits each read alone, so a slow stream would never time out."""
        deadline = time.monotonic() + self.timeout
        content = bytearray()
        with self._client.stream(method, url, json=body) as response:
            for part in response.iter_raw():
                content += part
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout(f"no complete answer in {self.timeout:g} s")
        return httpx.Response(
            response.status_code, headers=response.headers, content=bytes(content), extensions=response.extensions
        )

    def _pause(self, tries: int) -> float:
        """Seconds to wait, with a jitter of each process so that they do not retry at the same moment."""
        self._waits += 1
        jitter = stable_hash(socket.gethostname(), os.getpid(), self._waits) / 2**63
        return self.backoff * 2 ** (tries - 1) * (0.5 + jitter)

    def _error(self, path: str, problem: str) -> RetrievalError:
        return RetrievalError(f"retrieval server {self.url}{path}: {problem}")


def _is_address(url: str) -> bool:
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return address.scheme in ("http", "https") and bool(address.host)


def _named_backend(response: httpx.Response) -> str | None:
    try:
        payload = response.json()
    except ValueError:
        return None
    backend = payload.get("backend") if response.is_success and isinstance(payload, dict) else None
    return backend if isinstance(backend, str) else None


def _should_retry(status: int) -> bool:
    return status == 429 or (status >= 500 and status != 501)  # 501: the server has no such method


def _retry_after(response: httpx.Response) -> float:
    """Seconds; 0 where the header is absent or a date."""
    text = response.headers.get("retry-after", "")
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0.0


def _summary(response: httpx.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}: {' '.join(response.text.split())[:200]}"


def _is_local(url: str) -> bool:
    """Whether an address is on this machine."""
    host = httpx.URL(url).host
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
