"""OpenSearch's API, of a server that answers by a script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError, DataError, RejectedError, RetrievalError
from envs.retrievers import opensearch
from envs.retrievers.fill import main
from envs.retrievers.opensearch import OpenSearch, fill
from tests.envs.retrievers.opensearch_server import FakeOpenSearch
from tests.scripted_http import ScriptedServer, serving

ROWS = [("a", "Nile", "A river of Africa."), ("b", "Danube", "It flows through Vienna."), ("c", "Vienna", "A city.")]


def corpus(folder: Path, rows: list[tuple[str, str, str]] = ROWS) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps(dict(zip(("id", "title", "text"), row, strict=True))) + "\n" for row in rows))
    return path


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serving(FakeOpenSearch()) as server:
        yield server


def client(server: ScriptedServer, **settings: Any) -> OpenSearch:
    return OpenSearch(server.url, "rivers", **({"backoff": 0.001, "retries": 1} | settings))


def ids(retriever: OpenSearch, query: str) -> list[str]:
    return [hit.document.id for hit in retriever.search([query], 3)[0]]


def test_an_index_is_filled_once_and_again_when_the_corpus_changes(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opensearch, "_BLOCK_BYTES", 1)  # one passage a request
    path = corpus(tmp_path)
    first = fill(path, server.url, "rivers")
    assert fill(path, server.url, "rivers") == first
    assert [path for _, path, _, _ in server.requests].count(f"/{first}/_bulk") == 3
    opened = client(server, corpus=path)
    assert (ids(opened, "vienna"), ids(opened, "xyzzy")) == (["b", "c"], [])
    assert ids(client(server, title_weight=2.0), "vienna") == ["c", "b"]
    corpus(tmp_path, ROWS[:1])
    with pytest.raises(DataError, match=r"index 'rivers' \(rivers_\w{12}\) is of another corpus than .*: fill it: "):
        client(server, corpus=path).search(["x"], 1)
    second = fill(path, server.url, "rivers")
    assert ids(client(server, corpus=path), "vienna") == []
    assert list(server.answer.indexes) == [second]  # type: ignore[attr-defined]


def test_the_query_is_one_of_both_fields_with_ties_in_the_order_of_the_corpus(
    server: ScriptedServer, tmp_path: Path
) -> None:
    fill(corpus(tmp_path), server.url, "rivers")
    client(server, title_weight=0.5).search(["vienna", "river"], 2)
    method, path, body, headers = server.requests[-1]
    assert (method, path, headers["Content-Type"]) == ("POST", "/rivers/_msearch", "application/json")
    lines = [json.loads(line) for line in body.splitlines()]
    assert lines[::2] == [{}, {}]
    assert lines[1] == {
        "size": 2,
        "query": {"multi_match": {"query": "vienna", "fields": ["title^0.5", "text"], "type": "most_fields"}},
        "sort": ["_score", {"number": "asc"}],
        "_source": ["id", "title", "text"],
    }


def test_a_login_is_sent_and_never_shown(tmp_path: Path) -> None:
    with serving(lambda *_: (401, {"error": {"reason": "missing authentication, s3cret-word"}})) as server:
        found = client(server)
        found = OpenSearch(server.url.replace("//", "//root:s3cret-word@"), "rivers", retries=0)
        with pytest.raises(
            RejectedError, match=r"/rivers/_alias: answered 401: missing authentication, \*\*\*"
        ) as caught:
            found.search(["x"], 1)
        assert "s3cret" not in str(caught.value)
        assert server.requests[0][3]["Authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ((503, {}), RetrievalError, "gave up after try 2"),
        ((200, []), RetrievalError, "malformed answer: expected a JSON object"),
        ((200, {"responses": []}), RetrievalError, "malformed answer: expected 1 responses"),
        (
            (200, {"responses": [{"hits": {"hits": [{"_score": 1.0}]}}]}),
            RetrievalError,
            "malformed answer: KeyError '_source'",
        ),
        (
            (200, {"responses": [{"error": {"reason": "too many words"}}]}),
            RejectedError,
            "a query was rejected: too many words",
        ),
        ((400, {"error": {"root_cause": [{"reason": "no"}]}}), RejectedError, "answered 400: no"),
    ],
)
def test_a_bad_answer_is_one_line(answer: tuple[int, Any], error: type[Exception], message: str) -> None:
    def script(method: str, path: str, body: str) -> tuple[int, object]:
        return (200, {"rivers_0": {"aliases": {}}}) if path.endswith("_alias") else answer

    with serving(script) as server, pytest.raises(error, match=message) as caught:
        client(server).search(["x"], 1)
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)


def test_a_missing_index_is_named_with_the_command_that_fills_it(server: ScriptedServer) -> None:
    advice = (
        rf"has no index 'rivers': fill it: python -m envs\.retrievers\.fill opensearch --corpus FILE --url {server.url}"
    )
    with pytest.raises(DataError, match=advice):
        client(server).search(["x"], 1)
    with pytest.raises(ConfigError, match="name 'A b'"):
        OpenSearch(server.url, "A b")


@pytest.mark.parametrize(
    ("action", "answer", "message"),
    [
        (
            "_bulk",
            {"errors": True, "items": [{"index": {"error": {"reason": "disk is full"}}}]},
            "a passage was rejected: disk",
        ),
        ("_count", {"count": 2}, r"has 2 of 3 passages: fill it again"),
    ],
)
def test_what_the_server_did_not_take_is_no_index(
    tmp_path: Path, action: str, answer: dict[str, Any], message: str
) -> None:
    fake = FakeOpenSearch()
    script = lambda *request: (200, answer) if request[1].endswith(action) else fake(*request)  # noqa: E731
    with serving(script) as server:
        with pytest.raises(DataError, match=message):
            fill(corpus(tmp_path), server.url, "rivers")
        assert fake.aliases == {}


def test_one_command_fills_it(server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["opensearch", "--corpus", str(corpus(tmp_path)), "--name", "rivers", "--url"]
    assert main([*command, server.url]) == 0
    assert capsys.readouterr().out.startswith("rivers: filled as rivers_")
    assert main([*command, "ftp://x"]) == 2
    assert "OpenSearch: give an address like" in capsys.readouterr().err
