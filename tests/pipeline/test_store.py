"""The store: whole or absent, never changed, one process at a time."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from common.errors import DataError
from pipeline.store import Artifact, finite

ORIGIN = {"source": "abc", "inputs": {}}


def test_an_artifact_is_complete_from_its_manifest_on(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "sft-0123")
    with artifact.lock():
        artifact.open({"data": {"target": "a:A"}, "seed": 3}, ORIGIN)
        assert not artifact.complete
        artifact.close({"metrics": {"em": 0.5}})
    assert artifact.complete
    assert artifact.manifest() == {"metrics": {"em": 0.5}}
    assert (artifact.folder / "config.yaml").read_text() == "data:\n  target: a:A\nseed: 3\n"


def test_all_files_are_on_the_disk_before_the_manifest_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = Artifact(tmp_path / "sft-0123")
    artifact.open({}, ORIGIN)
    (artifact.folder / "model").mkdir()
    (artifact.folder / "model" / "weights").write_bytes(b"whole")
    synced: list[tuple[str, bool]] = []
    monkeypatch.setattr("common.files._sync", lambda path: synced.append((path.name, artifact.complete)))
    artifact.close({})
    first = {name for name, complete in synced if not complete}
    assert first >= {"sft-0123", "model", "weights", "config.yaml"}
    assert artifact.complete


def test_opening_again_drops_half_written_files_and_keeps_whole_ones(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "sft-0123")
    artifact.open({}, ORIGIN)
    (artifact.folder / "data").mkdir()
    (artifact.folder / "data" / "unit-1.jsonl").write_text("whole")
    (artifact.folder / "data" / ".unit-2.jsonl.77.tmp").write_text("ha")
    (artifact.folder / ".tokenizer.tmp").mkdir()  # of `build_once`
    (artifact.folder / ".tokenizer.tmp" / ".vocab.json.78.tmp").write_text("ha")
    artifact.open({}, ORIGIN)
    assert sorted(path.name for path in artifact.folder.rglob("*")) == [
        "config.yaml",
        "data",
        "origin.json",
        "unit-1.jsonl",
    ]


@pytest.mark.parametrize(
    ("error", "line"),
    [(DataError("x.txt:3:\nno number"), "x.txt:3: no number\n"), (ValueError("a"), "ValueError: a\n")],
)
def test_a_failure_is_noted_until_the_work_begins_again(tmp_path: Path, error: Exception, line: str) -> None:
    artifact = Artifact(tmp_path / "sft-0123")
    artifact.fail(error)
    assert not artifact.folder.exists(), "the work had not begun"
    artifact.open({}, ORIGIN)
    artifact.fail(error)
    assert (artifact.folder / "failed.txt").read_text() == line
    artifact.open({}, ORIGIN)
    assert not (artifact.folder / "failed.txt").exists()
    artifact.close({})
    artifact.fail(error)
    assert not (artifact.folder / "failed.txt").exists(), "what is complete does not change"


def test_the_origin_is_that_of_the_run_that_began(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "sft-0123")
    assert artifact.open({}, ORIGIN) == ORIGIN
    assert artifact.open({}, {"source": "later", "inputs": {}}) == ORIGIN
    artifact.close({})
    assert sorted(path.name for path in artifact.folder.iterdir()) == ["config.yaml", "manifest.json"]


def test_setting_aside_keeps_the_last_one_only(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "sft-0123")
    for making in ("first", "second"):
        artifact.open({}, ORIGIN)
        artifact.close({"making": making})
        artifact.set_aside()
    assert not artifact.folder.exists()
    assert json.loads((tmp_path / "sft-0123.old" / "manifest.json").read_text()) == {"making": "second"}


def test_one_that_was_killed_while_it_was_made_again_does_not_replace_the_whole_one(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "sft-0123")
    artifact.set_aside()  # there is none
    artifact.open({}, ORIGIN)
    artifact.close({"making": "first"})
    for _ in range(2):  # forced, killed, and forced again
        artifact.set_aside()
        artifact.open({}, ORIGIN)
    assert json.loads((tmp_path / "sft-0123.old" / "manifest.json").read_text()) == {"making": "first"}


def test_a_second_maker_says_that_it_waits_and_then_goes_on(tmp_path: Path, capsys) -> None:
    artifact = Artifact(tmp_path / "sft-0123")
    order: list[str] = []

    def second() -> None:
        with artifact.lock():
            order.append("second")

    with artifact.lock():
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.3)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "second"]
    assert capsys.readouterr().out == f"waiting for another process that makes {artifact.folder}\n"


@pytest.mark.parametrize("text", ["{", "[]", "3", "null", '"text"'])
def test_a_damaged_manifest_names_what_to_remove(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=rf"manifest.json is damaged: remove {tmp_path}"):
        Artifact(tmp_path).manifest()


def test_what_is_no_number_becomes_null() -> None:
    assert finite({"a": 1, "b": float("nan"), "c": float("inf")}) == {"a": 1.0, "b": None, "c": None}
