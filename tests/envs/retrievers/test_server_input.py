"""What the retrieval server makes of requests, good and bad, without a network."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from envs.retrievers.server import create_app
from tests.served import Overlap


@pytest.fixture(scope="module")
def app() -> TestClient:
    limits = {"max_queries": 4, "max_topk": 5, "max_query_chars": 20, "max_body_bytes": 2000}
    return TestClient(create_app(Overlap(), topk=2, **limits), raise_server_exceptions=False)


def test_topk_defaults_to_the_server_s_and_more_than_there_is_is_fine(app) -> None:
    def count(**request: object) -> int:
        return len(app.post("/retrieve", json={"queries": ["a"]} | request).json()["result"][0])

    assert [count(), count(topk=None), count(topk=1), count(topk=5)] == [2, 2, 1, 4]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"queries": []}, 200),
        ({"queries": list("abcd")}, 200),
        ({"queries": list("abcde")}, 400),
        ({"queries": ["b" * 20]}, 200),
        ({"queries": ["\u00e9" * 20]}, 200),
        ({"queries": ["b" * 21]}, 400),
        ({"queries": ["a"], "topk": 1}, 200),
        ({"queries": ["a"], "topk": 0}, 400),
        ({"queries": ["a"], "topk": 5}, 200),
        ({"queries": ["a"], "topk": 6}, 400),
        ({"queries": ["a"], "pad": "x" * (2000 - 29)}, 200),
        ({"queries": ["a"], "pad": "x" * (2001 - 29)}, 413),
    ],
)
def test_every_limit_lets_just_so_many_through(app, request_: dict, status: int) -> None:
    response = app.post("/retrieve", content=json.dumps(request_))
    assert response.status_code == status
    if status == 200:
        assert len(response.json()["result"]) == len(request_["queries"])


def test_a_query_may_have_no_hits(app) -> None:
    assert app.post("/retrieve", json={"queries": ["xyzzy", ""]}).json() == {"result": [[], []]}


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "body: Invalid JSON"),
        (b"queries=a", "body: Invalid JSON"),
        (b'{"queries": ["a"]', "body: Invalid JSON"),
        (b'{"queries": ["\xff"]}', "body: Invalid JSON"),
        (b'{"queries": ["\\ud800"]}', "body: Invalid JSON"),
        (b"[" * 1500, "body: Invalid JSON"),
        (["a"], "body: Input should be an object"),
        ({}, "queries: Field required"),
        ({"query": "a"}, "queries: Field required"),
        ({"queries": "a"}, "queries: Input should be a valid array"),
        ({"queries": list("abcde")}, "queries: List should have at most 4 items"),
        ({"queries": ["a", 1]}, "queries[1]: Input should be a valid string"),
        ({"queries": ["a", "b" * 21]}, "queries[1]: String should have at most 20 characters"),
        (b'{"queries": ["a\\udc00"]}', "body: Invalid JSON"),
        (b'{"queries": ["a"], "topk": 1e999}', "topk: Input should be a"),
        (b'{"queries": ["a"], "topk": 3.0e0}', "topk: Input should be a valid integer"),
        (b'{"queries": ["a"], "topk": ' + b"9" * 1500 + b"}", "topk: "),
        (b'{"queries": ["a"], "topk": NaN}', "topk: Input should be a"),
        ({"queries": ["a"], "topk": 0}, "topk: Input should be greater than or equal to 1"),
        ({"queries": ["a"], "topk": 6}, "topk: Input should be less than or equal to 5"),
        ({"queries": ["a"], "topk": True}, "topk: Input should be a valid integer"),
        ({"queries": ["a"], "topk": "3"}, "topk: Input should be a valid integer"),
        ({"queries": ["a"], "topk": 2.5}, "topk: Input should be a valid integer"),
        ({"queries": ["a"], "return_scores": 1}, "return_scores: Input should be a valid boolean"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong_in_one_line(app, body: object, complaint: str) -> None:
    response = app.post("/retrieve", content=body if isinstance(body, bytes) else json.dumps(body))
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    assert response.json()["error"].startswith(complaint)
    assert "\n" not in response.json()["error"]


def test_an_unknown_path_or_method_is_a_json_error(app) -> None:
    assert (app.get("/search").status_code, app.get("/search").json()) == (404, {"error": "Not Found"})
    assert (app.get("/retrieve").status_code, app.get("/retrieve").json()) == (405, {"error": "Method Not Allowed"})
    assert app.post("/retrieve/", json={"queries": ["a"]}).status_code == 404


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "queries": JSON | st.lists(st.text(st.characters(), max_size=25), max_size=6),
        "topk": JSON | st.integers(-1, 7),
        "return_scores": JSON | st.booleans(),
        "extra": JSON,
    },
)


@given(st.binary(max_size=3000) | (JSON | REQUEST).map(lambda value: json.dumps(value).encode()))
def test_no_input_breaks_the_server(app, body: bytes) -> None:
    response = app.post("/retrieve", content=body)
    if response.status_code == 200:
        queries = json.loads(body)["queries"]
        assert len(queries) == len(response.json()["result"]) <= 4
    else:
        assert response.status_code in (400, 413)
        assert list(response.json()) == ["error"]


@given(st.sampled_from(["GET", "PUT", "DELETE", "OPTIONS", "POST"]), st.text(max_size=20))
def test_no_path_breaks_the_server(app, method: str, path: str) -> None:
    response = app.request(method, f"/{quote(path)}")
    assert response.status_code == 200 or (400 <= response.status_code < 500 and list(response.json()) == ["error"])
