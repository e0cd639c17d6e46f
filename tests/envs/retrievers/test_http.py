"""The HTTP client against servers that misbehave in every way we could think of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

import common.bounded_http as bounded_http
from common.errors import ConfigError, RejectedError, RetrievalError
from envs.retrievers.cache import QueryCache
from envs.retrievers.http import HTTPRetriever
from envs.types import Document, Hit
from tests.retrieval_server import Reply, Server, breaks_off, good, hangs_up, hit, says, too_late


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*script: Callable[[Reply, dict], None], health: dict | None = None, port: int = 0) -> Server:
        servers.append(Server(list(script), health, port))
        Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def client(server: Server, **settings: object) -> HTTPRetriever:
    return HTTPRetriever(server.url, **({"backoff": 0.001, "timeout": 5.0} | settings))  # type: ignore[arg-type]


def test_the_request_is_the_common_one_and_hits_come_in_the_order_of_the_queries(serve) -> None:
    server = serve(good)
    assert client(server).search(["b", "a", "b"], 2) == [
        [hit("b", 0), hit("b", 1)],
        [hit("a", 0), hit("a", 1)],
        [hit("b", 0), hit("b", 1)],
    ]
    assert server.requests == [("/retrieve", {"queries": ["b", "a"], "topk": 2, "return_scores": True})]


def test_queries_go_in_batches(serve) -> None:
    server = serve(good)
    answers = client(server, batch_size=2).search(list("abcde"), 1)
    assert answers == [[hit(query, 0)] for query in "abcde"]
    assert server.queries() == [["a", "b"], ["c", "d"], ["e"]]


def test_no_queries_need_no_server() -> None:
    assert HTTPRetriever("http://127.0.0.1:1").search([], 3) == []


def test_the_url_may_name_the_endpoint(serve) -> None:
    server = serve(good)
    assert HTTPRetriever(f"{server.url}/retrieve/").search(["a"], 1) == [[hit("a", 0)]]
    assert [path for path, _ in server.requests] == ["/retrieve"]


def test_a_query_is_cut_to_what_servers_take(serve) -> None:
    server = serve(good)
    client(server, max_query_chars=5).search(["abcdefgh"], 1)
    assert server.queries() == [["abcde"]]


def test_bare_documents_are_read_and_surplus_ones_dropped(serve) -> None:
    bare = [{"id": 1, "title": "T", "text": "x"}, {"id": 2, "contents": '"U"\ny'}, {"id": 3, "contents": '"V"\nz'}]
    hits = client(serve(says(200, {"result": [bare]}))).search(["a"], 2)
    assert hits == [[Hit(Document("1", "T", "x")), Hit(Document("2", "U", "y"))]]


@pytest.mark.parametrize(
    "failure", [says(429, "slow down"), says(500, "oops"), says(503, "busy"), hangs_up, breaks_off]
)
def test_a_passing_failure_is_tried_again(serve, failure) -> None:
    server = serve(failure, failure, good)
    assert client(server).search(["a"], 1) == [[hit("a", 0)]]
    assert server.queries() == [["a"]] * 3


def test_an_answer_that_comes_too_late_is_asked_for_again(serve) -> None:
    server = serve(too_late, good)
    assert client(server, timeout=0.1).search(["a"], 1) == [[hit("a", 0)]]


def test_retry_after_is_waited_for_where_it_is_longer_than_the_own_pause(
    serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(bounded_http, "sleep", waits.append)
    retriever = client(serve(says(429, "", Retry_After="7"), says(503, "", Retry_After="0"), good), backoff=1.0)
    retriever.search(["a"], 1)
    assert waits[0] == 7.0
    assert 1.0 <= waits[1] < 3.0, "the second pause, with its jitter"


def test_a_password_in_the_address_is_sent_and_never_shown_or_kept(serve, tmp_path: Path) -> None:
    heads: list[str] = []

    def refuses(reply: Reply, _: dict) -> None:
        heads.append(reply.headers["Authorization"])
        reply.send(403, {"error": f"no such user: {heads[0]} (me:pass-word)"})

    server = serve(refuses)
    cache = tmp_path / "answers.sqlite"
    retriever = HTTPRetriever(server.url.replace("//", "//me:pass-word@"), cache=str(cache), backoff=0.001)
    with pytest.raises(RejectedError) as caught:
        retriever.search(["a"], 1)
    assert heads == ["Basic bWU6cGFzcy13b3Jk"]
    assert str(caught.value) == (
        f'retrieval server {server.url}/retrieve: answered 403 Forbidden: {{"error": "no such user: Basic *** (***)"}}'
    )
    assert retriever.identity == retriever.url == server.url
    assert not any(b"pass-word" in path.read_bytes() for path in tmp_path.iterdir())


def test_waits_grow_and_differ_but_stay_near_their_base() -> None:
    pauses = HTTPRetriever("http://127.0.0.1:1", backoff=0.5)
    waits = [pauses._pause(tries) for tries in (1, 1, 2, 3, 4)]
    assert all(0.5 <= wait / base < 1.5 for wait, base in zip(waits, (0.5, 0.5, 1.0, 2.0, 4.0), strict=True))
    assert waits[0] != waits[1]


def test_a_lasting_failure_ends_in_one_line_that_names_server_tries_and_cause(serve) -> None:
    server = serve(says(500, {"error": "index\nlost"}))
    with pytest.raises(RetrievalError) as caught:
        client(server, retries=2).search(["a"], 1)
    assert str(caught.value) == (
        f"retrieval server {server.url}/retrieve: gave up after try 3: "
        '500 Internal Server Error: {"error": "index\\nlost"}'
    )
    assert len(server.requests) == 3


def test_a_server_that_is_down_is_named(serve) -> None:
    server = serve(good)
    server.stop()
    with pytest.raises(RetrievalError, match=rf"{server.url}/retrieve: gave up after try 2: .*[Rr]efused"):
        client(server, retries=1).search(["a"], 1)
    with pytest.raises(RetrievalError, match=rf"{server.url}/health: gave up after try 2: .*[Rr]efused"):
        client(server, retries=1).check()


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (
            says(400, {"error": "queries: too many"}),
            '/retrieve: answered 400 Bad Request: {"error": "queries: too many"}',
        ),
        (says(404, b"<html>\n\nnothing </html>"), "/retrieve: answered 404 Not Found: <html> nothing </html>"),
        (
            says(307, b"", Location="http://elsewhere"),
            "/retrieve: answered 307 Temporary Redirect to http://elsewhere: redirects are not followed, give the",
        ),
        (says(400, b"\x1b[2J\x07bell"), "/retrieve: answered 400 Bad Request: \\x1b[2J\\x07bell"),
        (says(200, b"<html>hello</html>"), "/retrieve: malformed answer: Expecting value"),
        (says(200, b'{"result": [['), "/retrieve: malformed answer: Expecting value"),
        (says(200, b"\xff\xfe\xff"), "/retrieve: malformed answer: "),
        (says(200, b"[" * 100_000), "/retrieve: malformed answer: maximum recursion depth"),
        (says(200, {"result": []}), '/retrieve: malformed answer: "result" holds 0 lists for 1 queries'),
        (says(200, {"answers": [[]]}), "/retrieve: malformed answer: expected"),
    ],
)
def test_refusals_and_nonsense_are_not_tried_again_and_never_look_like_no_hits(serve, answer, complaint) -> None:
    server = serve(answer, good)
    with pytest.raises(RetrievalError) as caught:
        client(server).search(["a"], 1)
    assert isinstance(caught.value, RejectedError) == (" answered " in complaint)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(server.requests) == 1


def test_the_identity_is_the_backend_that_health_names(serve) -> None:
    server = serve(good, health={"status": "ok", "backend": "bm25-1"})
    retriever = client(server)
    assert [retriever.identity, retriever.identity] == ["bm25-1"] * 2
    assert server.probes == 1


@pytest.mark.parametrize("health", [None, {"status": "ok"}, {"backend": None}, ["ok"]])
def test_without_a_named_backend_the_identity_is_the_url(serve, health) -> None:
    server = serve(good, health=health)
    client(server).check()
    assert client(server).identity == server.url


def test_a_known_answer_needs_no_server(serve, tmp_path: Path) -> None:
    server = serve(good, health={"backend": "bm25-1"})
    cache = str(tmp_path / "answers.sqlite")
    first = client(server, cache=cache).search(["a", "b"], 2)
    assert client(server, cache=cache).search(["b", "a"], 2) == first[::-1]
    assert len(server.requests) == 1
    server.stop()
    offline = client(server, cache=cache, retries=1)
    assert offline.search(["a", "b"], 2) == first
    with pytest.raises(RetrievalError, match="gave up after try 2"):
        offline.search(["a", "c"], 2)


def test_only_what_is_missing_is_asked_for(serve, tmp_path: Path) -> None:
    server = serve(good)
    retriever = client(server, cache=str(tmp_path / "answers.sqlite"))
    retriever.search(["a"], 1)
    assert retriever.search(["b", "a", "c"], 1) == [[hit(query, 0)] for query in "bac"]
    assert server.queries() == [["a"], ["b", "c"]]


def test_another_k_is_another_question(serve, tmp_path: Path) -> None:
    server = serve(good)
    retriever = client(server, cache=str(tmp_path / "answers.sqlite"))
    assert [len(retriever.search(["a"], k)[0]) for k in (1, 3, 1)] == [1, 3, 1]
    assert [request["topk"] for _, request in server.requests] == [1, 3]


def test_another_backend_at_the_same_address_is_asked_anew(serve, tmp_path: Path) -> None:
    server = serve(good, health={"backend": "bm25-1"})
    cache = str(tmp_path / "answers.sqlite")
    client(server, cache=cache).search(["a"], 1)
    server.health = {"backend": "bm25-2"}
    client(server, cache=cache).search(["a"], 1)
    assert len(server.requests) == 2


def test_nothing_is_kept_under_a_backend_that_is_only_remembered(serve, tmp_path: Path) -> None:
    server = serve(good, health={"backend": "bm25-1"})
    cache = str(tmp_path / "answers.sqlite")
    client(server, cache=cache).search(["a"], 1)
    server.stop()
    retriever = client(server, cache=cache, retries=0)
    assert retriever.search(["a"], 1) == [[hit("a", 0)]]
    serve(good, health={"backend": "bm25-2"}, port=server.server_address[1])
    assert retriever.search(["c"], 1) == [[hit("c", 0)]]
    assert QueryCache(cache).get("bm25-1", 1, ["c"]) == {}
    assert QueryCache(cache).get("bm25-2", 1, ["c"]) == {"c": [hit("c", 0)]}


def test_a_failure_is_not_kept(serve, tmp_path: Path) -> None:
    server = serve(says(200, {"result": []}), good)
    retriever = client(server, cache=str(tmp_path / "answers.sqlite"))
    with pytest.raises(RetrievalError):
        retriever.search(["a"], 1)
    assert retriever.search(["a"], 1) == [[hit("a", 0)]]


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://host", "http://", "http://[::1", "http://host:x"])
def test_an_address_that_cannot_be_one_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError, match="give an address like"):
        HTTPRetriever(url)


@pytest.mark.parametrize(
    "setting", [{"timeout": 0}, {"timeout": float("inf")}, {"retries": -1}, {"backoff": -1}, {"batch_size": 0}]
)
def test_a_setting_out_of_range_is_refused_at_once(setting: dict) -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        HTTPRetriever("http://127.0.0.1:8000", **setting)
