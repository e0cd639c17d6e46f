"""Milvus Lite for real: filling, finding what is there, and what is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError, DataError, RetrievalError
from envs.retrievers import milvus
from envs.retrievers.fill import main
from envs.retrievers.milvus import Milvus, fill
from tests.word_encoder import WordEncoder

pytestmark = pytest.mark.threads
ROWS = [
    ("a", "Nile", "A river of Africa."),
    ("b", "Danube", "It flows through Vienna."),
    ("c", "Amazon", "More water."),
]


def corpus(folder: Path, rows: list[tuple[str, str, str]] = ROWS) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps(dict(zip(("id", "title", "text"), row, strict=True))) + "\n" for row in rows))
    return path


def ids(retriever: Milvus, query: str) -> list[str]:
    return [hit.document.id for hit in retriever.search([query], 3)[0]]


def test_a_collection_is_filled_once_and_again_when_the_corpus_changes(tmp_path: Path) -> None:
    path, uri = corpus(tmp_path), str(tmp_path / "m.db")
    first = fill(path, uri, "rivers")
    assert fill(path, uri, "rivers") == first
    opened = Milvus(uri, "rivers", corpus=path)
    assert (ids(opened, "vienna"), ids(opened, "xyzzy")) == (["b"], [])
    corpus(tmp_path, ROWS[::-1][:2])
    with pytest.raises(
        DataError, match=rf"Milvus at .*m\.db: index 'rivers' \({first}\) is of another corpus than .*: fill it: "
    ):
        Milvus(uri, "rivers", corpus=path)
    second = fill(path, uri, "rivers")
    changed = Milvus(uri, "rivers", corpus=path)
    assert (ids(changed, "africa"), ids(changed, "vienna")) == ([], ["b"])
    assert first != second
    assert opened.identity != changed.identity
    client, _ = milvus.connected(uri)
    assert client.list_collections() == [second]


def test_a_fill_that_was_killed_is_no_index_and_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, uri = corpus(tmp_path), str(tmp_path / "m.db")
    monkeypatch.setattr(milvus, "_BLOCK", 2)
    with monkeypatch.context() as patch:
        patch.setattr(milvus, "_rows", lambda block, first, encoder: killed(first) or real(block, first, encoder))
        with pytest.raises(KeyboardInterrupt):
            fill(path, uri, "rivers")
    with pytest.raises(
        DataError, match=r"has no index 'rivers': fill it: python -m envs\.retrievers\.fill milvus --corpus FILE"
    ):
        Milvus(uri, "rivers")
    fill(path, uri, "rivers")
    assert ids(Milvus(uri, "rivers"), "river") == ["a"]


real = milvus._rows


def killed(first: int) -> None:
    if first:
        raise KeyboardInterrupt


def test_vectors_are_those_of_one_encoder(tmp_path: Path) -> None:
    path, uri, encoder = corpus(tmp_path), str(tmp_path / "m.db"), cast_encoder("words")
    fill(path, uri, "rivers", encoder)
    dense = Milvus(uri, "rivers", search="dense", encoder=encoder, corpus=path)
    assert ids(dense, "flows through Vienna.")[0] == "b"
    assert ids(Milvus(uri, "rivers"), "africa") == ["a"]
    with pytest.raises(DataError, match="has no vectors of this encoder"):
        Milvus(uri, "rivers", search="dense", encoder=cast_encoder("other"))


def cast_encoder(identity: str) -> Any:
    return WordEncoder(identity)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"name": "No-Name"}, ConfigError, "name 'No-Name': use a to z, digits and _"),
        ({"search": "dense"}, ConfigError, "search dense needs an encoder"),
        ({"encoder": cast_encoder("words")}, ConfigError, "search bm25 takes no encoder"),
        ({"uri": "ftp://x"}, ConfigError, r"Milvus at ftp://x cannot be opened: .*; give http://host:port"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Milvus(**settings)


def test_a_server_that_is_not_there_is_one_line_without_the_password() -> None:
    with pytest.raises(RetrievalError, match=r"Milvus at http://\*\*\*@127\.0\.0\.1:9: ") as caught:
        Milvus("http://root:secret-word@127.0.0.1:9", timeout=0.1)
    assert "secret-word" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_another_process_has_open_is_named(tmp_path: Path) -> None:
    path, uri = corpus(tmp_path), str(tmp_path / "m.db")
    fill(path, uri, "rivers")
    code = f"from envs.retrievers.milvus import Milvus\nMilvus({uri!r}, 'rivers')"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "is another process using it? Milvus Lite has one at a time" in other.stderr.splitlines()[-1]


def test_a_passage_that_is_too_long_and_a_missing_library_are_named(tmp_path: Path, monkeypatch) -> None:
    path = corpus(tmp_path, [("long", "T", "x" * 70_000)])
    with pytest.raises(DataError, match=r"passage 'long' has more than 65,535 bytes: cut it into passages"):
        fill(path, str(tmp_path / "m.db"), "rivers")
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(ConfigError, match=r"Milvus needs pymilvus: pip install '\.\[milvus\]'"):
        Milvus(str(tmp_path / "m.db"))


def test_one_command_fills_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, uri = corpus(tmp_path), str(tmp_path / "m.db")
    assert main(["milvus", "--corpus", str(path), "--uri", uri, "--name", "rivers"]) == 0
    assert capsys.readouterr().out.startswith("rivers: filled as rivers_")
    assert main(["milvus", "--corpus", str(tmp_path / "gone.jsonl"), "--uri", uri]) == 2
    assert "gone.jsonl: No such file" in capsys.readouterr().err
