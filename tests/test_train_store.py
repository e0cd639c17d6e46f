"""`train.py` where its inputs or its store change: replaced, damaged, copied in part."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toys
from tests.toy_runs import artifact, config, reading, run

pytestmark = pytest.mark.usefixtures("without_reports")

KEPT = "written since the stage began, and perhaps not the same in between (--force one)"


def then(monkeypatch: pytest.MonkeyPatch, stage: str, change: Callable[[], object]) -> None:
    """Do something between the two units of a stage."""
    monkeypatch.setitem(toys.MOMENTS, stage, change)


def finished(folder: Path) -> list[str]:
    return sorted(path.parent.name.partition("-")[0] for path in (folder / "runs" / "store").glob("*/manifest.json"))


def made(folder: Path, stage: str) -> str:
    return (artifact(folder, stage) / "data" / "all.txt").read_text()


def killed() -> None:
    raise KeyboardInterrupt  # nothing is cleaned up, as by a kill


def test_a_stage_does_not_begin_on_an_input_that_changed_since_the_run_was_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, corpus = reading(tmp_path), tmp_path / "corpus.txt"
    monkeypatch.setattr("train.run_stage", after("one", lambda: corpus.write_text("other\n")))
    assert run(path) == 1
    told = f"error: {corpus} at stages.two.data.corpus ({path}:"
    captured = capsys.readouterr()
    assert captured.err.startswith(told)
    assert captured.err.endswith(") has changed since this run was planned: run again, and it is read anew\n")
    assert captured.err.count("\n") == 1
    assert finished(tmp_path) == ["one"]
    assert not list((tmp_path / "runs" / "store").glob("two-*")), "it has not begun"
    corpus.write_text("first\n")
    monkeypatch.undo()
    assert run(path) == 0
    assert made(tmp_path, "two") == 2 * ("first\n" + 2 * "first\n")


def after(stage: str, change: Callable[[], object]) -> Callable[..., None]:
    """`run_stage`, and something after one stage."""
    from pipeline.stages import run_stage

    def running(name: str, *arguments: object) -> None:
        run_stage(name, *arguments)  # type: ignore[arg-type]
        if name == stage:
            change()

    return running


def test_a_stage_does_not_end_on_an_input_that_changed_and_its_work_is_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, corpus = reading(tmp_path), tmp_path / "corpus.txt"
    then(monkeypatch, "one", lambda: corpus.write_text("other\n"))
    assert run(path) == 1
    told = f"{corpus} at stages.one.data.corpus ({path}:"
    assert capsys.readouterr().err.startswith(f"error: {told}")
    assert finished(tmp_path) == []
    assert (artifact(tmp_path, "one") / "failed.txt").read_text().startswith(told)
    monkeypatch.undo()
    corpus.write_text("first\n")
    assert run(path) == 0
    assert "one: starts over, what is in " in capsys.readouterr().out
    assert made(tmp_path, "one") == 2 * "first\n"


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file added": lambda folder: (folder / "b.txt").write_text("more\n"),
    "a file removed": lambda folder: (folder / "a.txt").unlink(),
    "a file renamed": lambda folder: (folder / "a.txt").rename(folder / "c.txt"),
    "a file of the same size and time": lambda folder: same_size_and_time(folder / "a.txt"),
    "another folder behind a link": lambda folder: relink(folder),
}


def same_size_and_time(file: Path) -> None:
    status = file.stat()
    file.write_text("other\n")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def relink(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    (folder.with_name("copy") / "a.txt").write_text("other\n")
    folder.rename(folder.with_name("before"))
    folder.symlink_to("copy")


@pytest.mark.parametrize("change", CHANGES)
def test_a_folder_counts_with_all_its_files(tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("first\n")
    path = reading(tmp_path, "folder")
    then(monkeypatch, "two", lambda: CHANGES[change](tmp_path / "folder"))
    assert run(path) == 1
    assert finished(tmp_path) == ["one"]


def test_a_hub_revision_that_moves_while_a_stage_works_is_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    head = tmp_path / "hub" / "models--org--tiny" / "refs" / "main"
    head.parent.mkdir(parents=True)
    head.write_text("abc")
    stage = {"target": "tests.toys:NumbersOf", "count": 1, "parts": [{"model": "org/tiny"}]}
    path = config(tmp_path, {"one": {"data": stage}})
    monkeypatch.setattr("tests.toys.NumbersOf.make", lambda *_, **__: head.write_text("def"))
    monkeypatch.setattr("tests.toys.NumbersOf.merge", lambda *_, **__: {})
    assert run(path) == 1
    assert capsys.readouterr().err.startswith("error: org/tiny at stages.one.data.parts[0].model (")


def test_an_artifact_that_is_made_again_while_a_stage_reads_it_is_a_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = reading(tmp_path)
    then(monkeypatch, "two", lambda: run(path, "--stage", "one", "--force", "one"))
    assert run(path) == 1
    error = capsys.readouterr().err
    assert (
        error
        == f"error: {artifact(tmp_path, 'one')} was made again while two read it: run again, and it is read anew\n"
    )
    assert finished(tmp_path) == ["one", "one"]  # and what it was before


def test_work_that_may_be_of_another_content_is_not_resumed_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while the file was another one, and resumed after it was put back."""
    path, corpus = reading(tmp_path), tmp_path / "corpus.txt"
    then(monkeypatch, "one", lambda: (corpus.write_text("other\n"), killed()))
    with pytest.raises(KeyboardInterrupt):
        run(path)
    corpus.write_text("first\n")
    monkeypatch.undo()
    capsys.readouterr()
    assert run(path) == 0
    assert f"one: {corpus}: {KEPT}\n" in capsys.readouterr().out
    assert json.loads((artifact(tmp_path, "one") / "manifest.json").read_text())["rewritten"] == [str(corpus)]
    assert run(path) == 0
    assert "one: reused, though made by other code or from an earlier input" in capsys.readouterr().out
    assert run(path, "--force", "one") == 0
    assert KEPT not in capsys.readouterr().out
    assert "rewritten" not in json.loads((artifact(tmp_path, "one") / "manifest.json").read_text())


def test_a_file_that_is_replaced_and_put_back_within_a_stage_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, corpus = reading(tmp_path), tmp_path / "corpus.txt"
    then(monkeypatch, "one", lambda: (corpus.write_text("other\n"), corpus.write_text("first\n")))
    assert run(path) == 0
    assert f"one: {corpus}: {KEPT}\n" in capsys.readouterr().out


def test_code_that_resumed_in_between_is_not_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first and the last run are of the same code, and the second, which was killed too, of another."""
    path = reading(tmp_path)
    then(monkeypatch, "one", killed)
    for source in ("a", "b", "a"):
        monkeypatch.setattr("pipeline.provenance.source_hash", lambda _, source=source: source)
        with pytest.raises(KeyboardInterrupt):
            run(path)
        for unit in artifact(tmp_path, "one").glob("data/unit-0.txt"):
            unit.unlink()
    told = "one: resumes what other code or inputs began (--force one starts over)"
    assert capsys.readouterr().out.count(told) == 2
