"""The store: whole or absent, never changed, one process at a time."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from common.errors import DataError
from pipeline.store import Artifact, finite

ORIGIN = {"source": "abc", "inputs": {}, "versions": {"torch": "2"}, "commit": None}
CONFIG = "539cf853f38ed5b6a4e36fd74549e045705472e7ac681d32bce89b8c117a8c01"
MANIFEST = ORIGIN | {"metrics": {"em": 0.5}}


def test_an_artifact_is_complete_from_its_manifest_on(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "sft-0123")
    with artifact.lock():
        artifact.open({"data": {"target": "a:A"}, "seed": 3}, ORIGIN)
        assert not artifact.complete
        artifact.close(MANIFEST)
    assert artifact.complete
    assert artifact.manifest() == MANIFEST | {"files": {"config.yaml": [28, CONFIG]}}
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
    assert artifact.open({}, ORIGIN | {"source": "later"}) == ORIGIN
    artifact.close({})
    assert sorted(path.name for path in artifact.folder.iterdir()) == ["config.yaml", "manifest.json"]


def test_setting_aside_keeps_the_last_one_only(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "sft-0123")
    for making in ("first", "second"):
        artifact.open({}, ORIGIN)
        artifact.close({"making": making})
        artifact.set_aside()
    assert not artifact.folder.exists()
    assert json.loads((tmp_path / "sft-0123.old" / "manifest.json").read_text())["making"] == "second"


def test_one_that_was_killed_while_it_was_made_again_does_not_replace_the_whole_one(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "sft-0123")
    artifact.set_aside()  # there is none
    artifact.open({}, ORIGIN)
    artifact.close({"making": "first"})
    for _ in range(2):  # forced, killed, and forced again
        artifact.set_aside()
        artifact.open({}, ORIGIN)
    assert json.loads((tmp_path / "sft-0123.old" / "manifest.json").read_text())["making"] == "first"


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


def test_what_no_run_began_is_not_resumed(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "sft-0123")
    (artifact.folder / "data").mkdir(parents=True)
    (artifact.folder / "data" / "unit-1.jsonl").write_text("half a copy")
    assert not artifact.begun
    artifact.open({}, ORIGIN)
    assert artifact.begun
    assert sorted(path.name for path in artifact.folder.rglob("*")) == ["config.yaml", "origin.json"]


def test_what_was_given_up_is_not_resumed(tmp_path: Path) -> None:
    artifact = Artifact(tmp_path / "sft-0123")
    artifact.open({}, ORIGIN)
    (artifact.folder / "unit-1.jsonl").write_text("of another input")
    artifact.give_up()
    artifact.fail(DataError("changed"))
    assert (artifact.folder / "unit-1.jsonl").exists(), "it is kept until the stage begins again"
    assert artifact.open({}, ORIGIN | {"source": "later"})["source"] == "later"
    assert sorted(path.name for path in artifact.folder.iterdir()) == ["config.yaml", "origin.json"]


def test_a_folder_on_another_disk_is_emptied_and_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "unit-1.jsonl").write_text("half a copy")
    artifact = Artifact(tmp_path / "sft-0123")
    artifact.folder.symlink_to(tmp_path / "disk")
    artifact.open({}, ORIGIN)
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["config.yaml", "origin.json"]


DAMAGED = [b"{", b"[]", b"{}", b"3", b"null", b'"text"', b"\xff\xfe\x00", b"", b"[" * 100_000]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
@pytest.mark.parametrize("name", ["manifest.json", "origin.json"])
def test_a_damaged_record_names_what_to_remove(tmp_path: Path, name: str, text: bytes) -> None:
    (tmp_path / name).write_bytes(text)
    with pytest.raises(DataError, match=rf"^{tmp_path}/{name} is damaged \(.+\): remove {tmp_path} to make it again$"):
        Artifact(tmp_path).check()


@pytest.mark.parametrize("key", ["source", "inputs", "versions", "metrics"])
def test_a_manifest_without_a_key_names_the_key(tmp_path: Path, key: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({name: MANIFEST[name] for name in MANIFEST if name != key}))
    with pytest.raises(
        DataError, match=rf"manifest.json is damaged \(no '{key}'\): remove {tmp_path} to make it again"
    ):
        Artifact(tmp_path).check()


@pytest.mark.parametrize("key", list(ORIGIN))
def test_an_origin_without_a_key_names_the_key(tmp_path: Path, key: str) -> None:
    (tmp_path / "origin.json").write_text(json.dumps({name: ORIGIN[name] for name in ORIGIN if name != key}))
    with pytest.raises(DataError, match=rf"origin.json is damaged \(no '{key}'\): remove {tmp_path} to make it again"):
        Artifact(tmp_path).check()


def test_what_is_no_number_becomes_null() -> None:
    assert finite({"a": 1, "b": float("nan"), "c": float("inf")}) == {"a": 1.0, "b": None, "c": None}
