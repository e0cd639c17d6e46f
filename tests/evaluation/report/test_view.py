"""The command that makes and opens pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import DataError
from evaluation.report import view
from tests.evaluation.report.fakes import Page, arm, experiment, judged

BEFORE, AFTER = (
    [judged(number, float(number in right), True, True) for number in range(4)] for right in ((0, 3), (1, 2))
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stages = {"eval_sft": arm(tmp_path, "eval_sft", BEFORE), "eval_rl": arm(tmp_path, "eval_rl", AFTER)}
    return experiment(tmp_path, stages)


def test_two_evaluations_of_one_run_are_compared(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    view.main([f"{folder}:eval_rl", f"{folder}:eval_sft", "--no-browser", "--out", str(tmp_path / "two.html")])
    shown = Page((tmp_path / "two.html").read_text())
    assert shown.data["arms"] == ["eval_rl", "eval_sft"]
    assert (shown.data["pair"]["first"], shown.data["pair"]["second"]) == ("eval_rl", "eval_sft")


def test_the_command_writes_a_runs_own_page_and_the_comparison_of_several(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(view.webbrowser, "open", opened.append)
    view.main([str(folder)])
    assert opened == [(folder / "report.html").as_uri()]
    other = experiment(tmp_path, {"eval": arm(tmp_path, "eval_x", AFTER)}, name="other")
    view.main([f"{folder}:eval_rl", str(other.parent), "--no-browser"])
    assert len(opened) == 1
    assert capsys.readouterr().out.split() == [str(folder / "report.html"), str(tmp_path / "comparison.html")]
    assert [*Page((tmp_path / "comparison.html").read_text()).counts()] == ["exp/seed0:eval_rl", "other/seed0:eval"]


def test_runs_of_one_name_are_told_apart_by_their_output_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = []
    for output, rows in (("one", BEFORE), ("two", AFTER)):
        (tmp_path / output).mkdir()
        folders.append(experiment(tmp_path / output, {"eval": arm(tmp_path / output, "eval", rows)}))
    monkeypatch.chdir(tmp_path)
    view.main([*map(str, folders), "--no-browser", "--out", "both.html"])
    shown = Page(Path("both.html").read_text())
    assert [*shown.counts()] == ["one/exp/seed0:eval", "two/exp/seed0:eval"]
    assert (shown.data["pair"]["first"], shown.data["pair"]["second"]) == (*shown.counts(),)
    assert "<code>tensorboard --logdir one</code> or <code>tensorboard --logdir two</code>" in shown.html
    assert "runFilter=exp/seed0%7Cexp/seed0&" in shown.html, "as TensorBoard calls them"
    assert [*shown.data["figures"]["arms"]["panels"]["toy/dev"]] == ["one/exp:eval", "two/exp:eval"], "a row each"


def test_what_cannot_be_found_ends_in_one_line(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty" / "seed0").mkdir(parents=True)
    for name, message in (
        (str(tmp_path / "nothing"), "no run at"),
        (str(tmp_path / "empty"), "names no stages"),
        (f"{folder}:eval_dpo", "no seed has finished eval_dpo"),
    ):
        with pytest.raises(SystemExit, match=message):
            view.main([name, "--no-browser"])
    with pytest.raises(DataError, match="no run to show"):
        view.write_page(tmp_path / "x.html", [])
