"""The cache of search answers: exact, keyed by backend, k and query, shared by processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import DataError
from envs.retrievers.cache import QueryCache
from envs.types import Document, Hit

PARIS = Hit(Document("7", "Paris", "Paris is a city."), 0.1)
OSLO = Hit(Document("8", "Oslo", ""), None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "answers.sqlite"


def test_an_answer_is_known_for_its_backend_k_and_query_only(path: Path) -> None:
    cache = QueryCache(path)
    cache.put("bm25-1", 3, {"capital": [PARIS, OSLO]})
    assert cache.get("bm25-1", 3, ["capital", "river"]) == {"capital": [PARIS, OSLO]}
    assert cache.get("bm25-1", 2, ["capital"]) == {}
    assert cache.get("bm25-2", 3, ["capital"]) == {}
    assert cache.get("bm25-1", 3, ["Capital"]) == {}


def test_no_hits_is_an_answer_too(path: Path) -> None:
    QueryCache(path).put("b", 3, {"xyzzy": []})
    assert QueryCache(path).get("b", 3, ["xyzzy"]) == {"xyzzy": []}


def test_a_newer_answer_replaces_the_older(path: Path) -> None:
    cache = QueryCache(path)
    cache.put("b", 3, {"q": [PARIS]})
    cache.put("b", 3, {"q": [OSLO]})
    assert cache.get("b", 3, ["q"]) == {"q": [OSLO]}


def test_the_backend_last_seen_behind_a_url_is_remembered(path: Path) -> None:
    cache = QueryCache(path)
    assert cache.backend("http://a") is None
    cache.remember("http://a", "bm25-1")
    cache.remember("http://a", "bm25-2")
    assert QueryCache(path).backend("http://a") == "bm25-2"


@pytest.mark.parametrize(
    "damage",
    [
        "hits = replace(hits, 'Paris is', 'Paris was')",
        "hits = substr(hits, 1, length(hits) - 5)",
        "hits = cast(x'ff00' as text)",
        "hits = ''",
        "query = 'river'",
    ],
)
def test_a_damaged_answer_is_not_used(path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    cache = QueryCache(path)
    cache.put("b", 3, {"capital": [PARIS], "fjord": [OSLO]})
    with cache.opened() as db:
        db.execute(f"update answers set {damage} where query = 'capital'")
    assert cache.get("b", 3, ["capital", "fjord", "river"]) == {"fjord": [OSLO]}
    assert caplog.messages == [f"query cache {path}: 1 damaged answers are not used: they are requested again"]


@settings(max_examples=25)
@given(st.text(), st.builds(Document, st.text(), st.text(), st.text()), st.none() | st.floats(allow_nan=False))
def test_what_comes_out_is_what_went_in(tmp_path_factory, query: str, document: Document, score: float | None) -> None:
    cache = QueryCache(tmp_path_factory.getbasetemp() / "exact.sqlite")
    cache.put("b", 1, {query: [Hit(document, score)]})
    assert cache.get("b", 1, [query]) == {query: [Hit(document, score)]}


def test_processes_may_share_a_file_from_its_first_moment(tmp_path: Path) -> None:
    writer = (
        "import sys; from envs.retrievers.cache import QueryCache; from envs.types import Document, Hit\n"
        "folder, name = sys.argv[1:]; print('ready', flush=True); sys.stdin.readline()\n"
        "for i in range(30):\n"
        "    hit = Hit(Document(str(i), 't', 'x' * 999), i)\n"
        "    QueryCache(f'{folder}/{i // 3}.sqlite').put('b', 3, {f'{name} {i}': [hit]})"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([sys.executable, "-c", writer, str(tmp_path), name], **pipes) for name in "abc"]
    assert [process.stdout.readline() for process in writers] == ["ready\n"] * 3
    for process in writers:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [(process.communicate()[1], process.returncode) for process in writers] == [("", 0)] * 3
    for i in range(30):
        known = QueryCache(tmp_path / f"{i // 3}.sqlite").get("b", 3, [f"{name} {i}" for name in "abc"])
        assert {query: hits[0].score for query, hits in known.items()} == {f"{name} {i}": i for name in "abc"}


def test_a_file_that_is_no_cache_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes " * 100)
    with pytest.raises(DataError, match=r"query cache .*notes\.txt: file is not a database; name another file"):
        QueryCache(path)
    assert path.read_text().startswith("these are my notes")
