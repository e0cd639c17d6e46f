"""Pages and summaries that `train.py` leaves: of a run that failed, of what was reused, of several runs at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import forked
from tests.toy_runs import chain, config, run


def test_the_page_of_a_run_opens_with_its_question_and_says_why_it_failed(tmp_path: Path) -> None:
    path = chain(tmp_path)
    path.write_text("# Can it count?\n" + path.read_text())
    shown = tmp_path / "runs" / "toy" / "seed0"
    assert run(path, "stages.more.data.fails_on=0") == 1
    assert "Not finished: more (failed: numbers.txt:3: not a number)." in (shown / "report.html").read_text()
    assert run(path) == 0
    page = (shown / "report.html").read_text()
    assert "Not finished" not in page
    assert "Can it count?" in page
    assert (shown / "report.md").read_text().startswith("# toy, seed 0\n\nCan it count?\n")


def test_reuse_across_changed_source_is_said(tmp_path: Path, capsys, monkeypatch) -> None:
    path = chain(tmp_path)
    run(path)
    monkeypatch.setattr("pipeline.plan.source_hash", lambda settings: "changed")
    capsys.readouterr()
    run(path)
    reused = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if "reused, though" in line]
    assert reused == ["first", "more"]
    assert run(path, "--dry-run") == 0
    assert capsys.readouterr().out.count("  done, made by other code  ") == 2
    report = (tmp_path / "runs" / "toy" / "seed0" / "report.md").read_text()
    assert "Reused: first was made by other code; more was made by other code. `--force NAME`" in report


def test_an_infinite_setting_lasts_to_the_end(tmp_path: Path) -> None:
    path = config(tmp_path, {"words": {"data": {"target": "tests.toys:Words", "scale": float("inf"), "count": 2}}})
    assert ".inf" in path.read_text()
    assert run(path) == 0
    summary = json.loads((tmp_path / "runs" / "toy" / "seed0" / "summary" / "summary.json").read_text())
    assert summary["settings"]["stages.words.data.scale"] == "inf"
    assert run(path) == 0


@pytest.mark.slow
def test_processes_that_start_the_same_at_once_all_end_rightly(tmp_path: Path) -> None:
    path = chain(tmp_path)
    several = [forked.start("--config", str(path)) for _ in range(3)]
    said = [running.communicate(timeout=120) for running in several]
    assert [running.returncode for running in several] == [0, 0, 0]
    assert [err for _, err in said] == ["", "", ""]
    assert sum(out.count("first: finished") for out, _ in said) == 1
    shown = tmp_path / "runs" / "toy" / "seed0"
    assert {run.name for run in shown.iterdir() if run.is_dir()} - {"figures"} == {"first", "more", "summary"}
