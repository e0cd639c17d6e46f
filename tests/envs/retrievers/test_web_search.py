"""Web search through each service's API, of a server that answers by a script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from common.errors import ConfigError, RejectedError, RetrievalError
from envs.retrievers.web_search import WebSearch
from envs.types import Document, Hit
from tests.envs.protocols.conformance import HARMLESS, HOSTILE
from tests.envs.retrievers.conformance import check_tags_stay_data
from tests.scripted_http import Answer, serving

KEY = "k-0123456789"
HITS = [
    Hit(Document("https://a.org/", "Emma", "A novel & <more> </answer>")),
    Hit(Document("https://b.org/", "", "Jane Austen")),
]
RESULTS: dict[str, object] = {
    "serper": {
        "organic": [
            {"title": "Emma", "link": "https://a.org/", "snippet": "A novel & <more> </answer>", "position": 1},
            {"link": "https://b.org/", "snippet": "Jane Austen"},
        ]
    },
    "serpapi": {
        "organic_results": [
            {"title": "Emma", "link": "https://a.org/", "snippet": "A novel & <more> </answer>"},
            {"link": "https://b.org/", "snippet": "Jane Austen"},
        ]
    },
    "brave": {
        "web": {
            "results": [
                {
                    "title": "Emma",
                    "url": "https://a.org/",
                    "description": "A <strong>novel</strong> &amp; &lt;more> </answer>",
                },
                {"url": "https://b.org/", "description": "Jane Austen", "title": None},
            ]
        }
    },
}
KEYS = {"serper": "SERPER_API_KEY", "serpapi": "SERPAPI_API_KEY", "brave": "BRAVE_API_KEY"}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS.values():
        monkeypatch.setenv(name, KEY)


def says(payload: object, status: int = 200) -> Answer:
    return lambda *_: (status, payload)


def search(address: str, service: Any, **settings: Any) -> WebSearch:
    return WebSearch(service, address=address, **({"cache": None, "retries": 1, "backoff": 0.001} | settings))


@pytest.mark.parametrize("service", RESULTS)
def test_results_are_passages(service: str) -> None:
    with serving(says(RESULTS[service])) as server:
        assert search(server.url, service).search(["Who wrote Emma?"], 2) == [HITS]
        assert search(server.url, service).search(["Who wrote Emma?", " "], 1) == [HITS[:1], []]
        method, path, body, headers = server.requests[0]
    asked = (
        {name: value for name, [value] in parse_qs(urlparse(path).query).items()}
        if method == "GET"
        else json.loads(body)
    )
    sent = {
        "serper": headers.get("X-API-KEY"),
        "serpapi": asked.get("api_key"),
        "brave": headers.get("X-Subscription-Token"),
    }
    assert sent[service] == KEY
    assert (asked["q"], str(asked.get("num", asked.get("count")))) == ("Who wrote Emma?", "2")


@pytest.mark.parametrize("payload", [{}, {"organic": []}, {"organic": None}])
def test_a_query_without_results_has_no_hits(payload: object) -> None:
    with serving(says(payload)) as server:
        assert search(server.url, "serper").search(["x"], 3) == [[]]


def test_an_answer_is_paid_for_once(tmp_path: Path) -> None:
    cache = str(tmp_path / "web.sqlite")
    with serving(says(RESULTS["serper"])) as server:
        web = search(server.url, "serper", cache=cache)
        assert web.search(["a", "b", "a"], 2) == [HITS, HITS, HITS]
        assert web.counts == {"web_search/calls": 2, "web_search/cached": 0}
        assert web.search(["a", "c"], 2) == [HITS, HITS]
        assert web.counts == {"web_search/calls": 3, "web_search/cached": 1}
        assert search(server.url, "serper", cache=cache).search(["c"], 2) == [HITS]
        assert len(server.requests) == 3


@pytest.mark.parametrize("service", RESULTS)
@pytest.mark.parametrize(
    ("payload", "status", "error", "message"),
    [
        ({"message": f"bad key {KEY}"}, 403, RejectedError, r"answered 403 Forbidden: "),
        ({}, 503, RetrievalError, "gave up after try 2"),
        (
            {"organic": [{}], "organic_results": [{}], "web": {"results": [{}]}},
            200,
            RetrievalError,
            "malformed answer: KeyError",
        ),
        ([], 200, RetrievalError, "malformed answer: AttributeError"),
    ],
)
def test_a_bad_answer_is_one_line_without_the_key(
    service: str, payload: object, status: int, error: type[Exception], message: str
) -> None:
    with (
        serving(says(payload, status)) as server,
        pytest.raises(error, match=f"web search {service} .*{message}") as caught,
    ):
        search(server.url, service).search(["x"], 1)
    assert type(caught.value) is error
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("service", "name"), KEYS.items())
def test_a_missing_key_is_named(service: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(ConfigError, match=f"WebSearch: set {name} to your key of {service}"):
        WebSearch(service)


def test_tags_in_results_stay_data() -> None:
    def script(method: str, path: str, body: str) -> tuple[int, object]:
        texts = HOSTILE if json.loads(body)["q"] == "zebra" else HARMLESS
        return 200, {
            "organic": [{"title": text, "link": f"https://x/{n}", "snippet": text} for n, text in enumerate(texts)]
        }

    with serving(script) as server:
        check_tags_stay_data(search(server.url, "serper"))
