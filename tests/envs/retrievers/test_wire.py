"""The JSON of the `/retrieve` API: what other projects' servers and clients write and read."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.retrievers.wire import read_result, write_result
from envs.types import Document, Hit

AARON = Document("12", "Aaron", "Aaron was a prophet.\nAnd a brother.")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["result", "document", "id"]), inner),
    max_leaves=12,
)


def test_with_scores_each_hit_is_a_document_and_a_score() -> None:
    assert write_result([[Hit(AARON, 0.83)], []], scores=True) == {
        "result": [
            [
                {
                    "document": {
                        "id": "12",
                        "contents": '"Aaron"\nAaron was a prophet.\nAnd a brother.',
                        "title": "Aaron",
                        "text": "Aaron was a prophet.\nAnd a brother.",
                    },
                    "score": 0.83,
                }
            ],
            [],
        ]
    }


def test_without_scores_each_hit_is_the_bare_document() -> None:
    (hits,) = write_result([[Hit(AARON, 0.83)]], scores=False)["result"]
    assert [sorted(hit) for hit in hits] == [["contents", "id", "text", "title"]]


def test_contents_is_a_quoted_title_then_the_text() -> None:
    row = {"document": {"id": 12, "contents": '"Aaron"\nAaron was a prophet.\nAnd a brother.'}, "score": 1}
    assert read_result({"result": [[row]]}, 1, 3) == [[Hit(AARON, 1.0)]]


def test_a_proxy_without_scores_and_ids_and_without_regard_for_k_is_read() -> None:
    rows = [{"document": {"contents": f'"T{i}"\nsnippet {i}'}} for i in range(5)]
    (hits,) = read_result({"result": [rows]}, 1, 2)
    assert [(hit.document.title, hit.document.text, hit.score) for hit in hits] == [
        ("T0", "snippet 0", None),
        ("T1", "snippet 1", None),
    ]
    assert hits[0].document.id != hits[1].document.id
    assert read_result({"result": [rows]}, 1, 2) == [hits]


@given(
    st.lists(st.lists(st.builds(Hit, st.builds(Document, st.text(), st.text(), st.text()), st.floats(-9, 9)))),
    st.booleans(),
)
def test_what_is_read_is_what_was_written(answers: list[list[Hit]], scores: bool) -> None:
    payload = json.loads(json.dumps(write_result(answers, scores=scores)))
    expected = [[Hit(hit.document, hit.score if scores else None) for hit in hits] for hits in answers]
    assert read_result(payload, len(answers), 10**6) == expected


@given(st.text(st.characters(exclude_characters="\n")), st.text())
def test_a_client_that_knows_contents_only_reads_the_same_document(title: str, text: str) -> None:
    document = Document("1", title, text)
    written = write_result([[Hit(document)]], scores=False)["result"][0][0]
    assert read_result({"result": [[{"id": "1", "contents": written["contents"]}]]}, 1, 3) == [[Hit(document)]]


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ([], 'expected {"result": [[...], ...]}'),
        ({"results": [[]]}, 'expected {"result": [[...], ...]}'),
        ({"result": {"0": []}}, 'expected {"result": [[...], ...]}'),
        ({"result": ["a document"]}, 'expected {"result": [[...], ...]}'),
        ({"result": []}, '"result" holds 0 lists for 1 queries'),
        ({"result": [[], []]}, '"result" holds 2 lists for 1 queries'),
        ({"result": [["a document"]]}, "result[0][0]: expected a JSON object"),
        ({"result": [[{"document": None}]]}, "result[0][0]: expected a JSON object"),
        ({"result": [[{"id": "1"}]]}, 'result[0][0]: key "title" must be a string'),
        ({"result": [[{"id": ["1"], "contents": "a"}]]}, 'result[0][0]: key "id" must be a string or an integer'),
        ({"result": [[{"document": {"id": "1", "contents": "a"}, "score": "high"}]]}, 'result[0][0]: "score" must be'),
        ({"result": [[{"document": {"id": "1", "contents": "a"}, "score": True}]]}, 'result[0][0]: "score" must be'),
        ({"result": [[{"document": {"id": "1", "contents": "a"}, "score": float("nan")}]]}, '"score" must be a finite'),
    ],
)
def test_nonsense_is_named_with_its_place(payload: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_result(payload, 1, 3)
    assert complaint in str(caught.value)


@given(JSON)
def test_any_other_json_is_a_value_error_or_hits(payload: object) -> None:
    with suppress(ValueError):
        (hits,) = read_result(payload, 1, 3)
        assert all(isinstance(hit, Hit) for hit in hits)
