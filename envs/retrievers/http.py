"""Search through any server of the common `/retrieve` API."""

from __future__ import annotations

from collections.abc import Sequence

import httpx

from common.bounded_http import parsed_address
from common.errors import RejectedError, RetrievalError
from envs.retrievers.http_search import HTTPSearch
from envs.retrievers.wire import read_result
from envs.types import Hit


class HTTPRetriever(HTTPSearch):
    """The retriever behind `url`, the root of a server or its `/retrieve` endpoint.

    Retries, batches and `cache` are those of `HTTPSearch`.

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
        parsed_address(url, "retrieval server")
        super().__init__(
            url.rstrip("/").removesuffix("/retrieve"),
            what="retrieval server",
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            batch_size=batch_size,
            max_query_chars=max_query_chars,
            cache=cache,
        )
        self._backend: str | None = None
        self._checked = False

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

    def _ask(self, queries: Sequence[str], k: int) -> dict[str, list[Hit]]:
        if self._cache and not self._checked:
            self.check()  # store no answer under a backend read from the cache alone
        response = self._request("POST", "/retrieve", {"queries": queries, "topk": k, "return_scores": True})
        if not response.is_success:
            raise RejectedError(str(self._error("/retrieve", f"answered {self._http.summary(response)}")))
        try:
            return dict(zip(queries, read_result(response.json(), len(queries), k), strict=True))
        except (ValueError, RecursionError) as error:
            raise self._error("/retrieve", f"malformed answer: {error}") from error


def _named_backend(response: httpx.Response) -> str | None:
    try:
        payload = response.json()
    except ValueError:
        return None
    backend = payload.get("backend") if response.is_success and isinstance(payload, dict) else None
    return backend if isinstance(backend, str) else None
