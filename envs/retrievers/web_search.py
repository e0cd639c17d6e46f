"""Search of the web through Serper, SerpAPI or Brave: what a result page shows of each page is a passage."""

from __future__ import annotations

import html
import os
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

from common.errors import ConfigError, RejectedError
from envs.retrievers.http_search import HTTPSearch
from envs.types import Document, Hit

_MARKUP = re.compile(r"</?(?:strong|b|em|i)>")  # that engines put around the words of the query


@dataclass(frozen=True)
class _Service:
    """How one service is asked and what its answers are called."""

    address: str
    path: str
    key_name: str
    key_header: str
    query: str
    count: str
    most: int
    results: tuple[str, ...]
    url: str
    snippet: str
    posts: bool = False


_SERVICES = {
    "serper": _Service(
        "https://google.serper.dev",
        "/search",
        "SERPER_API_KEY",
        "X-API-KEY",
        "q",
        "num",
        100,
        ("organic",),
        "link",
        "snippet",
        posts=True,
    ),
    "serpapi": _Service(
        "https://serpapi.com",
        "/search.json",
        "SERPAPI_API_KEY",
        "",
        "q",
        "num",
        100,
        ("organic_results",),
        "link",
        "snippet",
    ),
    "brave": _Service(
        "https://api.search.brave.com",
        "/res/v1/web/search",
        "BRAVE_API_KEY",
        "X-Subscription-Token",
        "q",
        "count",
        20,
        ("web", "results"),
        "url",
        "description",
    ),
}


class WebSearch(HTTPSearch):
    """Results of a web search: the address is the id of a passage, the page's title its title, the snippet its text.

    The key is read from the environment: `SERPER_API_KEY`, `SERPAPI_API_KEY` or `BRAVE_API_KEY`. Each answer is kept in
    `cache` and paid for once. `counts` has `web_search/calls`, those that were paid for, and `web_search/cached`.
    Answers change with the web, so the same run later may find other pages; the cache repeats the first answers.

    Args:
        service: whose API is used.
        cache: an SQLite file; None keeps nothing.
        concurrency: calls at once.
        address: of another server with the same API, such as a proxy.

    Raises:
        ConfigError: the key is missing, or a setting is wrong.
    """

    def __init__(
        self,
        service: Literal["serper", "serpapi", "brave"] = "serper",
        *,
        cache: str | None = "runs/cache/web.sqlite",
        concurrency: int = 8,
        address: str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
        backoff: float = 0.5,
        max_query_chars: int = 400,
    ) -> None:
        self._service = _SERVICES[service]
        self._key = os.environ.get(self._service.key_name, "")
        if not self._key:
            raise ConfigError(f"WebSearch: set {self._service.key_name} to your key of {service}")
        super().__init__(
            address or self._service.address,
            what=f"web search {service}",
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            batch_size=concurrency,
            max_query_chars=max_query_chars,
            cache=cache,
            key=self._key,
            key_header=self._service.key_header,
        )
        self._name = service
        self.counts: Counter[str] = Counter()

    @property
    def identity(self) -> str:
        """The service: its answers are those of the day they were asked for."""
        return f"web-{self._name}"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits a query, in the service's order, without scores; none for a query without a sign.

        Raises:
            RejectedError: the service rejects the key or a query.
            RetrievalError: it is down after all tries, or its answer is malformed.
        """
        asked = [query for query in dict.fromkeys(queries) if query.strip()]
        before = self.counts["web_search/calls"]
        found = dict(zip(asked, super().search(asked, k), strict=True))
        self.counts["web_search/cached"] += len(asked) - (self.counts["web_search/calls"] - before)
        return [list(found.get(query, [])) for query in queries]

    def _ask(self, queries: Sequence[str], k: int) -> dict[str, list[Hit]]:
        with ThreadPoolExecutor(max_workers=len(queries)) as pool:
            answers = list(pool.map(lambda query: self._one(query, k), queries))
        self.counts["web_search/calls"] += len(queries)
        return dict(zip(queries, answers, strict=True))

    def _one(self, query: str, k: int) -> list[Hit]:
        service = self._service
        fields: dict[str, Any] = {service.query: query, service.count: min(k, service.most)}
        if service.posts:
            response = self._request("POST", service.path, fields)
        else:
            secret = {} if service.key_header else {"engine": "google", "api_key": self._key}
            response = self._request("GET", f"{service.path}?{urlencode(fields | secret, errors='replace')}")
        if not response.is_success:
            raise RejectedError(str(self._error(service.path, f"answered {self._http.summary(response)}")))
        try:
            rows: Any = response.json()
            for name in service.results:  # a query without results has none of them
                rows = rows.get(name) or {}
            return [self._hit(row) for row in list(rows)[:k]]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            reason = f"malformed answer: {type(error).__name__} {error}"
            raise self._error(service.path, reason) from error

    def _hit(self, row: dict[str, Any]) -> Hit:
        title, text = (_plain(row.get(name) or "") for name in ("title", self._service.snippet))
        return Hit(Document(str(row[self._service.url]), title, text))


def _plain(text: str) -> str:
    return html.unescape(_MARKUP.sub("", text))
