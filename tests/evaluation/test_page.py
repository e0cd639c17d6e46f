from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.errors import DataError
from evaluation.freeze import freeze
from evaluation.freeze import main as freeze_main
from evaluation.page import main as page_main
from evaluation.page import render
from evaluation.report import write
from tests.evaluation.fake import answered, evaluation, run

ROOT = Path(__file__).parents[2]
TITLE = ["--title", "T", "--command", "c"]


def test_the_committed_page_is_what_the_committed_results_say() -> None:
    page = ROOT / "docs" / "results.md"
    if not page.exists():
        pytest.skip("no results are committed")
    assert page.read_text(encoding="utf-8") == render(ROOT / "docs" / "results")


def test_a_frozen_run_holds_what_it_takes_to_repeat_it(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 0], seed=0)
    run(tmp_path, "exp", [1, 1], seed=1)
    kept = freeze([str(tmp_path / "exp")], title="T", command="make it", question="Why?", machine="an abacus")
    assert [(row["experiment"], row["stage"], row["seed"], row["em"]) for row in kept["rows"]] == [
        ("exp", "eval", 0, 0.5),
        ("exp", "eval", 1, 1.0),
    ]
    del kept["rows"]
    assert kept == {
        "title": "T",
        "question": "Why?",
        "command": "make it",
        "commit": "abc123",
        "seeds": [0, 1],
        "machine": "an abacus",
        "versions": {"torch": "2.13.0"},
        "comparisons": [],
        "stages": [
            {"experiment": "exp", "seed": 0, "stage": "eval", "seconds": None, "metrics": {"em": 0.5}},
            {"experiment": "exp", "seed": 1, "stage": "eval", "seconds": None, "metrics": {"em": 1.0}},
        ],
        "notes": {"exp:eval, seed 0": {"top_k": 3}},
    }


def test_every_measure_is_kept_and_shown_with_its_interval(tmp_path: Path) -> None:
    row = {"dataset": "toy", "split": "dev", "n": 2, "em": 0.5, "em_low": 0.25, "em_high": 0.75}
    row |= {"f1": 0.6, "f1_low": 0.4, "f1_high": 0.8, "recall": 0.3, "recall_low": 0.125, "recall_high": 0.375}
    write(tmp_path, "exp", 0, {"eval": evaluation(tmp_path / "store" / "a", [answered(0, 1)], rows=[row])})
    freeze_main([str(tmp_path / "exp"), "--out", str(tmp_path / "kept" / "a.json"), "--title", "T", "--command", "c"])
    kept = json.loads((tmp_path / "kept" / "a.json").read_text())["rows"]
    assert kept == [{"experiment": "exp", "seed": 0, "stage": "eval", **row}]
    assert "50.0 [25.0, 75.0] | 60.0 [40.0, 80.0] | 30.0 [12.5, 37.5] |" in render(tmp_path / "kept")


def test_seeds_may_have_different_measures(tmp_path: Path) -> None:
    for seed, more in enumerate([{"recall": 0.5}, {}]):
        row = {"dataset": "toy", "split": "dev", "n": 1, "em": 1.0, **more}
        write(tmp_path, "exp", seed, {"eval": evaluation(tmp_path / f"store{seed}", [answered(0, 1)], rows=[row])})
    freeze_main([str(tmp_path / "exp"), "--out", str(tmp_path / "kept" / "a.json"), "--title", "T", "--command", "c"])
    assert "| toy | dev | eval | 2 | 100.0 ± 0.0 | 50.0 |" in " ".join(render(tmp_path / "kept").split())


def test_results_of_different_commits_name_them_all(tmp_path: Path) -> None:
    artifacts = {c: evaluation(tmp_path / "store" / c, [answered(0, 1)], commit=c) for c in ("new", "old")}
    write(tmp_path, "exp", 0, artifacts)
    assert freeze([str(tmp_path / "exp")], title="T", command="c")["commit"] == "new, old"
    assert freeze([f"{tmp_path / 'exp'}:old"], title="T", command="c")["commit"] == "old"


def test_the_page_says_what_was_run_and_what_came_of_it(tmp_path: Path) -> None:
    run(tmp_path / "runs", "exp", [1, 0], seed=0)
    exp, kept = str(tmp_path / "runs" / "exp"), tmp_path / "kept"
    freeze_main([exp, "--out", str(kept / "b.json"), "--title", "One", "--command", "train it"])
    run(tmp_path / "runs", "exp", [1, 1], seed=1)
    freeze_main(
        [
            str(tmp_path / "runs/exp"),
            "--out",
            str(tmp_path / "kept/a.json"),
            "--title",
            "Two",
            "--command",
            "train both",
        ]
    )
    page_main([str(tmp_path / "kept"), str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    two, one = page.index("## Two"), page.index("## One")
    assert two < one
    assert "| toy | dev | eval | 2 | 75.0 ± 35.4 |" in " ".join(page[two:one].split())
    assert "```\ntrain both\n```" in page[two:one]
    assert "Commit abc123, seeds 0, 1, " in page[two:one]
    assert "torch 2.13.0" in page[two:one]
    assert "- exp:eval, seed 0: top_k 3" in page[two:one]
    assert "50.0 [25.0, 50.0]" in page[one:]
    assert "±" not in page[one:]
    assert page == render(kept)


def test_several_experiments_are_compared_and_commented_on(tmp_path: Path) -> None:
    for seed in (0, 1):
        run(tmp_path, "one", [1, 0], seed=seed)
        run(tmp_path, "two", [1, seed], seed=seed)
    kept = tmp_path / "kept"
    arms = [str(tmp_path / "one"), f"{tmp_path / 'two'}:eval"]
    asked = ["--metric", "em", "--metric", "f1", "--baseline", "one"]
    freeze_main([*arms, "--out", str(kept / "a.json"), *TITLE, *asked])
    (kept / "a.md").write_text("Two is no better.\n")
    page = " ".join(render(kept).split())
    assert "| one | toy | dev | eval | 2 | 50.0 ± 0.0 |" in page
    assert "| two | toy | dev | eval | 2 | 75.0 ± 35.4 |" in page
    assert (page.count("Baseline: one:eval."), page.count(" ### toy/dev ")) == (1, 2)
    assert "+25.0 [" in page
    assert page.index("Two is no better.") < page.index("+25.0 [") < page.index("Commit abc123"), "what it means first"


def test_stages_that_experiments_share_are_shown_once_with_what_their_seeds_made(tmp_path: Path) -> None:
    for seed, auc in enumerate((0.75, 0.85)):
        prm = tmp_path / f"prm{seed}"
        prm.mkdir()
        (prm / "manifest.json").write_text(json.dumps({"seconds": 10.0 + 4 * seed, "metrics": {"prm/auc": auc}}))
        for name in ("one", "two"):
            artifacts = {"prm": prm, "eval": evaluation(tmp_path / f"{name}{seed}", [answered(0, 1)])}
            write(tmp_path, name, seed, artifacts)
    freeze_main([str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "k/a.json"), *TITLE])
    page = " ".join(render(tmp_path / "k").split())
    assert "- one:prm (12 ± 3 s): prm/auc 0.8 ± 0.0707 " in page
    assert "two:prm" not in page


def test_a_file_that_was_not_made_by_freezing_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"title": "T"}))
    with pytest.raises(DataError, match=r"x\.json lacks 'rows'"):
        render(tmp_path)


def test_a_folder_without_results_leaves_the_page_as_it_was(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Results")
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(SystemExit, match=rf"^error: no results \(\*\.json\) in {folder}: make some with [^\n]*$"):
            page_main([str(folder), str(page)])
    assert page.read_text() == "# Results"
