from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from common.errors import DataError
from evaluation.pages.freeze import freeze
from evaluation.pages.freeze import main as freeze_main
from evaluation.pages.page import main as page_main
from evaluation.pages.page import render
from evaluation.report.report import write
from tests.evaluation.fake import answered, evaluation, run, step_ranking

ROOT = Path(__file__).parents[3]
TITLE = ["--title", "T", "--command", "c"]


def page(folder: Path, name: str = "a") -> str:
    """One page, its runs of spaces shortened."""
    return " ".join(render(folder)[folder / "pages" / f"{name}.md"].split())


def test_the_committed_pages_are_what_the_committed_results_say() -> None:
    folder = ROOT / "docs" / "results"
    pages = render(folder)
    for path, text in pages.items():
        committed = path.read_text(encoding="utf-8")
        same = alike(committed, text) if path.suffix == ".svg" else committed == text
        assert same, f"{path.name}: run python -m evaluation.pages.page docs/results"
    assert {folder.with_suffix(".md"), *folder.glob("pages/*"), *folder.glob("figures/*")} == pages.keys()


def alike(one: str, other: str) -> bool:
    """Whether two SVGs say and show the same: coordinates may differ in what no eye sees, from processor to processor.

    Names of elements are hashes of such coordinates.
    """
    numbers = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
    texts = [re.sub(r'"(url\()?#?[mpC][0-9a-f_]{8,}\)?"', "name", text) for text in (one, other)]
    first, second = ([float(number) for number in re.findall(numbers, text)] for text in texts)
    rest = [re.sub(numbers, "0", text) for text in texts]
    return rest[0] == rest[1] and all(abs(a - b) < 0.01 for a, b in zip(first, second, strict=True))


def test_figures_that_differ_in_a_point_or_a_word_are_not_alike() -> None:
    figure = '<path id="m0123456789" d="M 1.000001 2"/><text>β</text>'
    assert alike(figure, figure.replace("1.000001", "1.000002").replace("m0123456789", "m9876543210"))
    assert not alike(figure, figure.replace("1.000001", "1.1"))
    assert not alike(figure, figure.replace("β", "λ"))


def test_every_committed_result_has_an_answer() -> None:
    for path in (ROOT / "docs" / "results").glob("*.json"):
        answer = path.with_suffix(".md").read_text(encoding="utf-8").partition("\n\n")[0]
        assert 10 < len(answer.split()) < 100, path.name


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
        "figures": [],
        "stopping": [],
        "rankings": [],
        "costs": [],
        "comparisons": [],
        "stages": [
            {"experiment": "exp", "seed": 0, "stage": "eval", "seconds": None, "accounts": {}, "metrics": {"em": 0.5}},
            {"experiment": "exp", "seed": 1, "stage": "eval", "seconds": None, "accounts": {}, "metrics": {"em": 1.0}},
        ],
        "notes": {"exp:eval, seed 0": {"top_k": 3}},
    }


def test_a_page_shows_when_policies_stop_by_hops(tmp_path: Path) -> None:
    for seed, late in ((0, 0.25), (1, 0.75)):
        stops = {"dataset": "toy", "split": "dev", "em": 0.5, "searches": 2.0, "premature": 0.1, "late": late, "n": 4}
        groups = [{"group": "hops=2", "f1": 0.9, **stops}, {"group": "type=bridge", **stops}]
        artifact = evaluation(tmp_path / "store" / f"a{seed}", [answered(0, 1)], groups=groups)
        write(tmp_path, "exp", seed, {"eval": artifact})
    (tmp_path / "kept").mkdir()
    freeze_main([str(tmp_path / "exp"), "--out", str(tmp_path / "kept" / "a.json"), *TITLE])
    section = page(tmp_path / "kept").partition("## When policies stop")[2].partition("##")[0]
    assert "| toy | dev | eval | 2 | 2 | 50.0 ± 0.0 | 10.0 ± 0.0 | 50.0 ± 35.4 | 2.00 ± 0.00 |" in section
    assert "bridge" not in section


def test_every_measure_is_kept_and_shown_with_its_interval(tmp_path: Path) -> None:
    row = {"dataset": "toy", "split": "dev", "n": 2, "em": 0.5, "em_low": 0.25, "em_high": 0.75}
    row |= {"f1": 0.6, "f1_low": 0.4, "f1_high": 0.8, "recall": 0.3, "recall_low": 0.125, "recall_high": 0.375}
    write(tmp_path, "exp", 0, {"eval": evaluation(tmp_path / "store" / "a", [answered(0, 1)], rows=[row])})
    freeze_main([str(tmp_path / "exp"), "--out", str(tmp_path / "kept" / "a.json"), "--title", "T", "--command", "c"])
    kept = json.loads((tmp_path / "kept" / "a.json").read_text())["rows"]
    assert kept == [{"experiment": "exp", "seed": 0, "stage": "eval", **row}]
    assert "50.0 [25.0, 75.0] | 60.0 [40.0, 80.0] | 30.0 [12.5, 37.5] |" in page(tmp_path / "kept")


def test_seeds_may_have_different_measures(tmp_path: Path) -> None:
    for seed, more in enumerate([{"recall": 0.5}, {}]):
        row = {"dataset": "toy", "split": "dev", "n": 1, "em": 1.0, **more}
        write(tmp_path, "exp", seed, {"eval": evaluation(tmp_path / f"store{seed}", [answered(0, 1)], rows=[row])})
    freeze_main([str(tmp_path / "exp"), "--out", str(tmp_path / "kept" / "a.json"), "--title", "T", "--command", "c"])
    assert "| toy | dev | eval | 2 | 100.0 ± 0.0 | 50.0 |" in page(tmp_path / "kept")


def test_results_of_different_commits_name_them_all(tmp_path: Path) -> None:
    artifacts = {c: evaluation(tmp_path / "store" / c, [answered(0, 1)], commit=c) for c in ("new", "old")}
    write(tmp_path, "exp", 0, artifacts)
    assert freeze([str(tmp_path / "exp")], title="T", command="c")["commit"] == "new, old"
    assert freeze([f"{tmp_path / 'exp'}:old"], title="T", command="c")["commit"] == "old"


def test_each_result_has_a_page_and_a_place_in_the_index(tmp_path: Path) -> None:
    exp, folder = str(tmp_path / "runs" / "exp"), tmp_path / "kept"
    run(tmp_path / "runs", "exp", [1, 0], seed=0)
    freeze_main([exp, "--out", str(folder / "b.json"), "--title", "One", "--command", "train it"])
    run(tmp_path / "runs", "exp", [1, 1], seed=1)
    asked = ["--title", "Two", "--command", "train both", "--question", "Are two better?"]
    freeze_main([exp, "--out", str(folder / "a.json"), *asked])
    (folder / "a.md").write_text("Yes, by 25 points.\n\nOr so.\n")
    page_main([str(folder)])
    index = (tmp_path / "kept.md").read_text()
    lines = [line for line in index.splitlines() if line][2:]
    two = ["## [Two](kept/pages/a.md)", "*Are two better?*", "Yes, by 25 points."]
    assert lines == [*two, "## [One](kept/pages/b.md)"]
    assert page(folder).startswith("# Two *Are two better?* Yes, by 25 points. Or so. ## Results Mean over seeds ")
    assert "| toy | dev | eval | 2 | 75.0 ± 35.4 |" in page(folder)
    assert "``` train both ``` Commit abc123; seeds 0, 1; " in page(folder)
    assert "torch 2.13.0" in page(folder)
    assert "[a.json](../a.json)" in page(folder)
    assert "top_k 3" not in page(folder), "settings stay in the JSON"
    one = page(folder, "b")
    assert "50.0 [25.0, 50.0]" in one
    assert "±" not in one
    assert {path: path.read_text() for path in [tmp_path / "kept.md", *folder.glob("pages/*")]} == render(folder)


def test_several_experiments_are_compared_and_commented_on(tmp_path: Path) -> None:
    for seed in (0, 1):
        run(tmp_path, "one", [1, 0], seed=seed)
        run(tmp_path, "two", [1, seed], seed=seed)
    folder = tmp_path / "kept"
    arms = [str(tmp_path / "one"), f"{tmp_path / 'two'}:eval"]
    asked = ["--metric", "em", "--metric", "f1", "--baseline", "one"]
    freeze_main([*arms, "--out", str(folder / "a.json"), *TITLE, *asked])
    (folder / "a.md").write_text("Two is no better.\n")
    text = page(folder)
    assert "| one | toy | dev | eval | 2 | 50.0 ± 0.0 |" in text
    assert "| two | toy | dev | eval | 2 | 75.0 ± 35.4 |" in text
    assert text.count("Baseline: one:eval.") == text.count(" ### EM, toy/dev ") == text.count(" ### F1, toy/dev ") == 1
    assert "+25.0 [" in text
    assert text.index("Two is no better.") < text.index("+25.0 [") < text.index("Commit abc123"), "the answer first"


def test_several_baselines_have_a_table_each(tmp_path: Path) -> None:
    for name, correct in (("one", [1, 0]), ("two", [1, 1]), ("three", [0, 0])):
        run(tmp_path, name, correct, seed=0)
    arms = [str(tmp_path / name) for name in ("one", "two", "three")]
    asked = ["--metric", "em", "--baseline", "two", "--baseline", "three"]
    freeze_main([*arms, "--out", str(tmp_path / "kept" / "a.json"), *TITLE, *asked])
    (tmp_path / "kept" / "a.md").write_text("Two is best.\n")
    first, second = page(tmp_path / "kept").partition("Baseline: two:eval.")[2].split("Baseline: three:eval.")
    for section, difference in ((first, "-50.0 ["), (second, "+50.0 [")):
        assert "| one:eval " in section
        assert difference in section


def test_a_page_says_what_each_policy_cost_by_its_last_stage_and_in_all(tmp_path: Path) -> None:
    def stage(name: str, tokens: int, updates: int, needs: tuple[str, ...] = (), **manifest: Any) -> Path:
        folder = tmp_path / "store" / name
        folder.mkdir(parents=True, exist_ok=True)
        accounts = {"tokens": {"policy": tokens}, "updates": updates, "judge_calls": 2, "cpu_seconds": 1.0}
        inputs = {need: {"artifact": need} for need in needs}
        whole = {"kind": "fit", "accounts": accounts, "inputs": inputs, **manifest}
        (folder / "manifest.json").write_text(json.dumps(whole))
        return folder

    for seed in (0, 1):
        artifacts = {
            "sft": stage(f"sft{seed}", 0, 10),
            "rl": stage(f"rl{seed}", 1000 + 500 * seed, 20, (f"sft{seed}",)),
        }
        measured = evaluation(tmp_path / "store" / f"eval{seed}", [answered(0, 1)])
        manifest = json.loads((measured / "manifest.json").read_text())
        manifest |= {"inputs": {f"rl{seed}": {"artifact": f"rl{seed}"}}}
        (measured / "manifest.json").write_text(json.dumps(manifest))
        write(tmp_path, "exp", seed, artifacts | {"eval": measured})
    freeze_main([str(tmp_path / "exp"), "--out", str(tmp_path / "kept" / "a.json"), *TITLE])
    section = page(tmp_path / "kept").partition("## What the policies cost")[2].partition("##")[0]
    assert "| eval | 2 | 1,250 | 1,250 | 30 | 4 | 2 |" in section


def test_stages_that_experiments_share_are_frozen_once(tmp_path: Path) -> None:
    prm = tmp_path / "prm"
    prm.mkdir()
    (prm / "manifest.json").write_text(
        json.dumps({"seconds": 10.0, "accounts": {"updates": 7}, "metrics": {"prm/pair_accuracy": 0.75}})
    )
    for name in ("one", "two"):
        write(tmp_path, name, 0, {"prm": prm, "eval": evaluation(tmp_path / f"{name}0", [answered(0, 1)])})
    stages = freeze([str(tmp_path / "one"), str(tmp_path / "two")], title="T", command="c")["stages"]
    assert [(stage["experiment"], stage["stage"]) for stage in stages] == [
        ("one", "prm"),
        ("one", "eval"),
        ("two", "eval"),
    ]
    assert stages[0]["metrics"] == {"prm/pair_accuracy": 0.75}
    assert stages[0]["accounts"] == {"updates": 7}


def test_figures_are_drawn_beside_the_page_the_first_below_the_answer(tmp_path: Path) -> None:
    for seed, em in ((0, [1, 0]), (1, [1, 1])):
        for number in (0, 1):
            run(tmp_path / "runs", f"beta_{number}", em, seed=seed)
    arms, folder = [str(tmp_path / "runs" / f"beta_{number}") for number in (0, 1)], tmp_path / "kept"
    asked = ["--figure", "sweep", "--figure", "arms=beta_1"]
    freeze_main([*arms, "--out", str(folder / "a.json"), *TITLE, *asked])
    (folder / "a.md").write_text("A little is best.\n\nOr not.\n")
    page_main([str(folder)])
    text = page(folder)
    first, second = text.index("(../figures/a-sweep.svg)"), text.index("(../figures/a-arms-beta_1.svg)")
    assert text.index("A little is best.") < first < text.index("Or not.") < second < text.index("## Results")
    drawn = {path.name: path.read_text() for path in (folder / "figures").iterdir()}
    assert drawn.keys() == {"a-sweep.svg", "a-arms-beta_1.svg"}
    assert ">β</text>" in drawn["a-sweep.svg"]
    assert ">beta_1:eval</text>" in drawn["a-arms-beta_1.svg"]
    assert ">beta_0:eval</text>" not in drawn["a-arms-beta_1.svg"]


def test_a_figure_that_the_runs_hold_nothing_for_is_refused_when_they_are_frozen(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 0])
    with pytest.raises(SystemExit, match=r"^error: the results hold nothing for the figure 'auc'[^\n]*$"):
        freeze_main([str(tmp_path / "exp"), "--out", str(tmp_path / "a.json"), *TITLE, "--figure", "auc"])
    assert not (tmp_path / "a.json").exists()


def test_runs_that_rank_steps_alone_have_a_page_too(tmp_path: Path) -> None:
    for seed, wrong in ((0, 0), (1, 2)):
        write(tmp_path, "exp", seed, {"rank": step_ranking(tmp_path / f"rank{seed}", right=2, wrong=wrong)})
    asked = ["--figure", "auc", "--figure", "reliability"]
    freeze_main([str(tmp_path / "exp"), "--out", str(tmp_path / "kept" / "a.json"), *TITLE, *asked])
    kept = json.loads((tmp_path / "kept" / "a.json").read_text())
    assert kept["seeds"] == [0, 1]
    assert kept["commit"] == "c"
    text = page(tmp_path / "kept")
    assert "| exp | – | 0, 1 | 0.750 [" in text
    assert "## Results" not in text
    assert text.index("(../figures/a-auc.svg)") < text.index("## Ranking of true and untrue steps")


def test_a_file_that_was_not_made_by_freezing_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"title": "T"}))
    with pytest.raises(DataError, match=r"x\.json lacks 'question'"):
        render(tmp_path)


def test_a_folder_without_results_leaves_the_pages_as_they_were(tmp_path: Path) -> None:
    index = tmp_path / "kept.md"
    index.write_text("# Results")
    (tmp_path / "kept").mkdir()
    with pytest.raises(SystemExit, match=r"^error: no results \(\*\.json\) in .*kept: make some with [^\n]*$"):
        page_main([str(tmp_path / "kept")])
    assert index.read_text() == "# Results"
