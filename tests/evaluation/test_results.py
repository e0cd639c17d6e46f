"""Finished runs whose files are damaged: compare, freeze and report say which in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.contents import listing
from common.errors import DataError
from common.hashes import FileHashes
from evaluation.pages import compare, freeze
from evaluation.report.report import write
from evaluation.report.run import read_run
from evaluation.results import read_manifest
from tests.evaluation.fake import answered, evaluation, run

DAMAGED = [b"{}", b"[]", b'{"kind": "ma', b"\xff\x00\xfe", b"", b"[" * 100_000]
TITLE = ["--title", "T", "--command", "c"]


def arm(folder: Path) -> Path:
    """A run of one evaluation; returns its artifact, whose files are listed."""
    run(folder, "exp", [1, 0, 1])
    artifact = folder / "store" / "eval-exp-0"
    edit(artifact / "manifest.json", files=listing(artifact, FileHashes()))
    return artifact


def edit(path: Path, **changes: Any) -> None:
    """Change an object in a file; None removes a key."""
    told = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in told.items() if value is not None}))


def said(folder: Path, command: Any, *more: str) -> str:
    """The line with which a command ends."""
    with pytest.raises(SystemExit) as ended:
        command.main([str(folder / "exp"), *more])
    (line,) = str(ended.value.code).splitlines()
    return line


def named(folder: Path, problem: str) -> bool:
    """Whether the page of the run names a problem."""
    return any(problem in each for each in read_run(folder / "exp" / "seed0").problems)


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_manifest_is_one_line(tmp_path: Path, content: bytes) -> None:
    artifact = arm(tmp_path)
    (artifact / "manifest.json").write_bytes(content)
    told = f"{artifact}/manifest.json is damaged"
    with pytest.raises(DataError, match=f"^{told}"):
        read_manifest(artifact)
    assert said(tmp_path, compare).startswith(f"error: {told}")
    assert said(tmp_path, freeze, "--out", str(tmp_path / "a.json"), *TITLE).startswith(f"error: {told}")
    with pytest.raises(DataError, match=f"^{told}"):
        write(tmp_path, "exp", 0, {"eval": artifact})
    assert named(tmp_path, "eval-exp-0/manifest.json is damaged")


@pytest.mark.parametrize("key", ["versions", "commit"])
def test_a_manifest_that_lacks_what_is_frozen_is_one_line(tmp_path: Path, key: str) -> None:
    artifact = arm(tmp_path)
    edit(artifact / "manifest.json", **{key: None})
    line = said(tmp_path, freeze, "--out", str(tmp_path / "a.json"), *TITLE)
    assert line == f"error: {artifact}/manifest.json is damaged (no '{key}'): remove {artifact} to make it again"


def test_predictions_that_are_cut_off_at_a_line_are_not_compared(tmp_path: Path) -> None:
    artifact = arm(tmp_path)
    predictions = artifact / "data" / "predictions-toy-dev.jsonl"
    lines = predictions.read_text().splitlines(keepends=True)
    predictions.write_text("".join(lines[:2]))
    told = f"{predictions} is damaged ({sum(map(len, lines[:2])):,} bytes, not {sum(map(len, lines)):,})"
    assert said(tmp_path, compare).startswith(f"error: {told}")
    assert said(tmp_path, freeze, "--out", str(tmp_path / "a.json"), *TITLE).startswith(f"error: {told}")
    assert named(tmp_path, "eval-exp-0/data/predictions-toy-dev.jsonl is damaged (")


@pytest.mark.parametrize(
    "content",
    [*DAMAGED, b'{"rows": []}', b'{"rows": [3], "artifacts": {}}', b'{"rows": [{"stage": "eval"}], "artifacts": {}}'],
    ids=range(len(DAMAGED) + 3),
)
def test_damaged_results_of_a_seed_are_one_line(tmp_path: Path, content: bytes) -> None:
    arm(tmp_path)
    path = tmp_path / "exp" / "seed0" / "results.json"
    path.write_bytes(content)
    line = said(tmp_path, compare)
    assert line.startswith(f"error: {path} ")
    assert line.endswith("; remove it and run again what wrote it")
    other = evaluation(tmp_path / "store" / "other", [answered(0, 1)])
    with pytest.raises(DataError, match=f"^{path} "):
        write(tmp_path, "exp", 1, {"eval": other})


@pytest.mark.parametrize(
    "content", [*DAMAGED, b'{"stages": {"eval": 3}}', b'{"stages": {}, "reused": 3}'], ids=range(8)
)
def test_a_damaged_announcement_is_one_line(tmp_path: Path, content: bytes) -> None:
    arm(tmp_path)
    path = tmp_path / "exp" / "seed0" / "experiment.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"^{path} "):
        read_run(path.parent)


def test_a_damaged_summary_is_written_again(tmp_path: Path) -> None:
    from evaluation import tensorboard_summary

    arm(tmp_path)
    folder = tmp_path / "exp" / "seed0"
    tensorboard_summary.write(folder, {"seed": 0})
    whole = (folder / "summary" / "summary.json").read_bytes()
    (folder / "summary" / "summary.json").write_bytes(whole[:20])
    tensorboard_summary.write(folder, {"seed": 0})
    assert (folder / "summary" / "summary.json").read_bytes() == whole


def test_a_report_says_what_was_reused_though_made_otherwise(tmp_path: Path) -> None:
    artifact = arm(tmp_path)
    folder = tmp_path / "exp" / "seed0"
    assert "Reused" not in (folder / "report.md").read_text()
    places = {"stages": {"eval": "store/eval-exp-0"}}
    (folder / "experiment.json").write_text(json.dumps(places | {"reused": {"eval": "by other code"}}))
    write(tmp_path, "exp", 0, {"eval": artifact})
    told = "Reused: eval was made by other code. `--force NAME` runs a stage again.\n"
    assert told in (folder / "report.md").read_text()
    assert "finished, made by other code" in (folder / "report.html").read_text()
