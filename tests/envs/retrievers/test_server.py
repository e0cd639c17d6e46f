"""The retrieval server, asked as other projects ask it and as nobody should."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Queue

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from common.errors import ConfigError, RetrievalError
from envs.retrievers.bm25 import BM25
from envs.retrievers.http import HTTPRetriever
from envs.retrievers.micro_batches import MicroBatches
from envs.retrievers.server import create_app, main
from envs.types import Hit
from tests.served import CORPUS, Overlap, Slow, post, serving, wait_until


class Down:
    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        raise RetrievalError("the index is gone")


class Broken:
    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        raise ZeroDivisionError("secret detail")


@pytest.fixture
def serve() -> Iterator[Callable[[FastAPI], str]]:
    """The address at which an app is served."""
    with serving() as start:
        yield lambda app: start(app).url


def test_a_client_of_the_published_format_is_served(serve) -> None:
    url = serve(create_app(Overlap()))
    status, answer = post(url, {"queries": ["aaron prophet", "river"], "topk": 1, "return_scores": True})
    assert status == 200
    assert [[(hit["document"]["id"], hit["score"]) for hit in hits] for hits in answer["result"]] == [
        [("1", 2.0)],
        [("3", 1.0)],
    ]
    # The three public clients render a hit so:
    contents = answer["result"][0][0]["document"]["contents"]
    title, text = contents.split("\n")[0], "\n".join(contents.split("\n")[1:])
    assert f"Doc 1(Title: {title}) {text}" == 'Doc 1(Title: "Aaron") Aaron was a prophet.\nAnd a brother.'

    status, answer = post(url, {"queries": ["aaron"], "topk": None})
    assert status == 200
    assert answer["result"][0][0]["contents"].startswith('"Aaron"\nAaron was')
    assert "score" not in answer["result"][0][0]

    with urllib.request.urlopen(f"{url}/health", timeout=10) as response:
        assert json.load(response) == {"status": "ok", "topk": 3, "backend": "overlap-1", "documents": 4}


def test_our_client_gets_what_the_retriever_gives(serve) -> None:
    client = HTTPRetriever(serve(create_app(Overlap())))
    client.check()
    assert client.identity == "overlap-1"
    queries = ["heroes album", "passage", "the nile", "xyzzy"]
    assert client.search(queries, 3) == Overlap().search(queries, 3)


def test_a_body_that_is_too_large_is_not_read_to_its_end(serve) -> None:
    url = serve(create_app(Overlap(), max_body_bytes=1000))
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n" + b"x" * 2000)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 413")
    assert answer.endswith(b'{"error":"body: longer than 1000 bytes"}')
    assert post(url, {"queries": ["a"]})[0] == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_may_have_just_as_many_bytes_as_the_limit(serve, chunked: bool) -> None:
    body = b'{"queries": ["aaron"], "topk": 1}'

    def status(limit: int) -> int:
        address = serve(create_app(Overlap(), max_body_bytes=limit)).removeprefix("http://")
        client = http.client.HTTPConnection(address, timeout=10)
        parts = iter([body[:9], body[9:-1], body[-1:]]) if chunked else body
        client.request("POST", "/retrieve", parts, encode_chunked=chunked)
        return client.getresponse().status

    assert [status(len(body) + more) for more in (1, 0, -1)] == [200, 200, 413]


def test_the_bodies_in_work_have_a_limit_together_and_the_next_is_503(serve) -> None:
    slow = Slow()
    body = json.dumps({"queries": ["a" * 400]}).encode()
    url = serve(create_app(slow, max_body_bytes=len(body), max_bytes_in_work=2 * len(body)))
    answers: Queue[tuple[int, dict]] = Queue()
    clients = [threading.Thread(target=lambda: answers.put(post(url, body))) for _ in range(2)]
    clients[0].start()
    wait_until(lambda: slow.searches)
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as half:
        half.sendall(b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:100])
        time.sleep(0.1)
        held = f"busy: {len(body) + 100} bytes of requests are in work"
        assert post(url, body) == (503, {"error": held})
        with pytest.raises(urllib.error.HTTPError, match="503") as error:
            urllib.request.urlopen(f"{url}/retrieve", body, timeout=10)
        with error.value:
            assert error.value.headers["Retry-After"] == "1"
    wait_until(lambda: post(url, b"x" * len(body))[0] == 400)  # that of the client that left is free again
    clients[1].start()
    slow.go.set()
    assert [answers.get(timeout=10) for _ in clients] == [(200, {"result": [[]]})] * 2
    assert post(url, body)[0] == 200


def test_a_client_that_closes_reads_its_503_and_leaves_room(serve) -> None:
    slow = Slow()
    url = serve(create_app(slow, max_queries=9, max_query_chars=2**21, max_body_bytes=2**22, max_bytes_in_work=2**22))
    body = json.dumps({"queries": ["a" * 2**21] * 2})[: 2**22].encode()
    held = json.dumps({"queries": ["a" * 2**21]}).encode()
    answers: Queue[tuple[int, dict]] = Queue()
    client = threading.Thread(target=lambda: answers.put(post(url, held)))
    client.start()
    wait_until(lambda: slow.searches)
    for _ in range(3):  # urllib closes after its request; what was read of it takes no room
        assert post(url, body) == (503, {"error": f"busy: {len(held)} bytes of requests are in work"})
    slow.go.set()
    assert answers.get(timeout=10) == (200, {"result": [[]]})


def test_the_client_of_search_r1_is_served_whatever_its_batch(serve) -> None:
    """`_batch_search` of its `generation.py`: all queries of a rollout at once, also where no episode searches."""
    url = serve(create_app(Overlap()))

    def batch_search(queries: list[str]) -> list:
        answer = post(url, {"queries": queries, "topk": 3, "return_scores": True})[1]
        return answer["result"]

    assert batch_search([]) == []
    results = batch_search([f"river {n}" for n in range(2560)])
    assert len(results) == 2560
    assert [hit["document"]["id"] for hits in results for hit in hits] == ["3"] * 2560
    assert len(batch_search(["word " * 3000])) == 1


def test_the_hits_of_a_request_have_a_limit() -> None:
    app = TestClient(create_app(Overlap(), max_hits=9))
    answers = [app.post("/retrieve", json={"queries": ["river"] * queries}) for queries in (3, 4)]
    assert [answer.status_code for answer in answers] == [200, 400]
    assert answers[1].json() == {"error": "4 queries of topk 3: at most 9 hits in all"}


def test_a_corpus_that_is_overwritten_is_503_for_every_request(serve, tmp_path: Path) -> None:
    rows = [json.dumps({"id": name, "title": name, "text": "river"}) + "\n" for name in ("nile", "oder")]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(rows))
    url = serve(create_app(BM25(corpus, cache=str(tmp_path / "cache"))))
    asked = {"queries": ["nile"], "topk": 1}
    known = post(url, asked)
    corpus.write_text("".join(rows[::-1]))
    changed = f"corpus {corpus} was changed while it was in use: put it back as it was, or start again"
    for request in (asked, {"queries": ["oder"]}, {"queries": []}):
        assert post(url, request) == (503, {"error": changed})
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(f"{url}/health", timeout=10)
    corpus.write_text("".join(rows))
    assert post(url, asked) == known


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_not_finite_is_503(score: float) -> None:
    class Overflowing:
        def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            return [[Hit(CORPUS[0], score)] for _ in queries]

    response = TestClient(create_app(Overflowing())).post("/retrieve", json={"queries": ["a"], "return_scores": True})
    assert response.status_code == 503
    assert response.json() == {"error": f"the retriever gives passage 1 the score {score}"}


def test_a_retriever_that_fails_is_503_and_a_bug_is_500(serve) -> None:
    assert post(serve(create_app(Down())), {"queries": ["a"]}) == (503, {"error": "the index is gone"})
    assert post(serve(create_app(Broken())), {"queries": ["a"]}) == (
        500,
        {"error": "ZeroDivisionError in the server; its log says where"},
    )


def test_a_nameless_retriever_is_given_no_name() -> None:
    assert TestClient(create_app(Down())).get("/health").json() == {"status": "ok", "topk": 3}


def test_requests_wait_in_a_bounded_queue_and_health_answers_meanwhile(serve) -> None:
    slow = Slow()
    url = serve(create_app(slow, concurrency=2, queue=1))
    answers: Queue[tuple[int, dict]] = Queue()
    clients = [threading.Thread(target=lambda: answers.put(post(url, {"queries": ["a"]}))) for _ in range(4)]
    for client in clients:
        client.start()
    busy = "busy: 1 requests are waiting"
    assert answers.get(timeout=10) == (503, {"error": busy})  # two of the four are in work, one waits
    impatient = HTTPRetriever(url, retries=0)
    with pytest.raises(RetrievalError, match=busy):
        impatient.search(["a"], 1)
    impatient.check()
    slow.go.set()
    assert [answers.get(timeout=10) for _ in range(3)] == [(200, {"result": [[]]})] * 3
    assert slow.most == 2
    assert post(url, {"queries": ["a"]})[0] == 200


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[MicroBatches]:
    """Those that apps have made."""
    made: list[MicroBatches] = []
    monkeypatch.setattr(
        "envs.retrievers.server.MicroBatches", lambda *a, **k: made.append(MicroBatches(*a, **k)) or made[-1]
    )
    return made


def test_a_client_that_has_left_is_not_searched_for(serve, batches: list[MicroBatches]) -> None:
    slow = Slow()
    url = serve(create_app(slow, queue=1))
    answers: Queue[tuple[int, dict]] = Queue()

    def client(query: str) -> threading.Thread:
        return threading.Thread(target=lambda: answers.put(post(url, {"queries": [query]})))

    first, last = client("first"), client("last")
    first.start()
    wait_until(lambda: slow.searches)
    with pytest.raises(RetrievalError, match="no complete answer"):
        HTTPRetriever(url, timeout=0.2, retries=0).search(["impatient"], 1)
    wait_until(lambda: not batches[0]._waiting)
    last.start()  # it finds the queue's one place empty
    wait_until(lambda: batches[0]._waiting)
    slow.go.set()
    assert [answers.get(timeout=10) for _ in range(2)] == [(200, {"result": [[]]})] * 2
    assert slow.searches == [["first"], ["last"]]


@pytest.mark.parametrize(("named", "searches"), [(True, 1), (False, 2)])
def test_an_answer_is_given_again_unless_the_retriever_has_no_name(serve, named: bool, searches: int) -> None:
    slow = Slow()
    slow.go.set()
    if named:
        slow.identity = "slow-1"
    url = serve(create_app(slow))
    assert [post(url, {"queries": ["a"]}) for _ in range(2)] == [(200, {"result": [[]]})] * 2
    assert len(slow.searches) == searches


LIMITS = "all limits must be at least 1, queue and cached_answers at least 0"
TOGETHER = "max_bytes_in_work must be at least max_body_bytes, max_hits at least topk"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"topk": 0}, "topk 0 must lie between 1 and max_topk, 100"),
        ({"topk": 101}, "topk 101 must lie between 1 and max_topk, 100"),
        *(({name: 0}, LIMITS) for name in ("max_queries", "max_hits", "max_query_chars", "max_body_bytes")),
        *(({name: 0}, LIMITS) for name in ("max_bytes_in_work", "max_batch", "concurrency")),
        *(({name: -1}, LIMITS) for name in ("queue", "cached_answers", "cached_bytes")),
        ({"max_bytes_in_work": 2**24 - 1}, TOGETHER),
        ({"max_hits": 2}, TOGETHER),
    ],
)
def test_a_limit_is_refused_just_where_no_request_could_meet_it(limits: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create_app(Overlap(), **limits)
    nearest = {name: 100 if value == 101 else value + 1 for name, value in limits.items()}
    room = {"max_body_bytes": 1} if "max_bytes_in_work" in limits and nearest["max_bytes_in_work"] == 1 else {}
    room |= {"topk": 1} if nearest.get("max_hits") == 1 else {}
    create_app(Overlap(), **nearest | room)


def test_any_class_can_be_served(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"target": "envs.retrievers.http:HTTPRetriever", "url": serve(create_app(Overlap()))}
    served: list[FastAPI] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: served.append(self.config.app))
    assert main(["component", "--json", json.dumps(spec), "--port", "0", "--topk", "1", "--max-queries", "2"]) == 0
    proxy = TestClient(served[0])
    assert proxy.get("/health").json() == {"status": "ok", "topk": 1, "backend": "overlap-1"}
    (hits,) = proxy.post("/retrieve", json={"queries": ["passage"]}).json()["result"]
    assert [document["id"] for document in hits] == ["4"]
    assert proxy.post("/retrieve", json={"queries": ["a", "b", "c"]}).status_code == 400
