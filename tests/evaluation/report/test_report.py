from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from common.errors import DataError
from common.plain_text import visible
from evaluation.report.report import write
from tests.evaluation.fake import answered, evaluation, run, step_ranking

KEYS = [
    *("experiment", "seed", "stage", "dataset", "split", "n", "em", "em_low", "em_high", "f1", "f1_low", "f1_high"),
    *("cover", "flawed", "unresolved", "searches", "valid_steps", "recall", "seconds"),
]


def test_rows_have_exactly_the_agreed_keys_and_null_where_missing(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 0], seed=3)
    (row,) = json.loads((tmp_path / "exp" / "results.json").read_text())["rows"]
    assert list(row) == KEYS
    assert (row["experiment"], row["seed"], row["stage"], row["n"], row["em"]) == ("exp", 3, "eval", 2, 0.5)
    assert row["cover"] is row["recall"] is row["f1_low"] is None
    assert json.loads((tmp_path / "exp" / "seed3" / "results.json").read_text())["rows"] == [row]


def test_other_seeds_rows_are_kept_and_a_repeated_seed_replaces_its_own(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 1], seed=10)
    run(tmp_path, "exp", [0, 0], seed=2)
    write(tmp_path, "exp", 2, {"again": evaluation(tmp_path / "store" / "again", [answered(0, 1), answered(1, 0)])})
    rows = json.loads((tmp_path / "exp" / "results.json").read_text())["rows"]
    assert [(row["seed"], row["stage"], row["em"]) for row in rows] == [(2, "again", 0.5), (10, "eval", 1.0)]


def test_what_is_not_a_number_becomes_null(tmp_path: Path) -> None:
    rows = [{"dataset": "toy", "split": "dev", "n": 1, "em": 1.0, "em_low": float("nan"), "recall": float("nan")}]
    write(tmp_path, "exp", 0, {"eval": evaluation(tmp_path / "a", [answered(0, 1)], rows=rows)})
    (row,) = json.loads((tmp_path / "exp" / "results.json").read_text(), parse_constant=pytest.fail)["rows"]
    assert row["em_low"] is row["recall"] is None


def test_the_headline_is_returned_with_intervals(tmp_path: Path) -> None:
    text = run(tmp_path, "exp", [1, 0])
    assert "toy/dev" in text
    assert "50.0 [25.0, 50.0]" in text
    assert "cover" not in text  # no row has it
    assert "1.50" in text
    assert str(tmp_path / "exp" / "seed0" / "report.md") in text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an experiment with a world, a wrong agent and a better one."""
    world = tmp_path / "store" / "world-1"
    world.mkdir(parents=True)
    (world / "manifest.json").write_text(json.dumps({"metrics": {"facts": 9, "guess_em": 0.234}, "seconds": 1.0}))
    bare = {"dataset": "toy", "split": "dev", "n": 1, "em": 1.0}
    groups = [{**bare, "group": group} for group in ("hops=10", "hops=2", "type=bridge")]
    notes = {"retriever": "bm25", "stops": {"answered": 7, "step_budget": 2}, "limits": {"turns": {"max": 4}}}
    good = [answered(0, 1, flawed=1.0), answered(1, 1, flawed=0.0), answered(2, 0)]
    good[2]["steps"].append({"kind": "none", "text": "", "valid": False, "hits": [], "said": "I forgot the tags"})
    artifacts = {
        "world": world,
        "weak": evaluation(tmp_path / "store" / "weak-1", [answered(0, 0), answered(1, 0)]),
        "strong": evaluation(tmp_path / "store" / "strong-1", good, groups=groups, notes=notes),
    }
    write(tmp_path, "exp", 1, artifacts, question="Is the strong agent better?")
    return tmp_path / "exp" / "seed1"


@pytest.fixture
def report(folder: Path) -> str:
    return (folder / "report.md").read_text()


@pytest.fixture
def details(folder: Path) -> str:
    return (folder / "details.md").read_text()


def test_the_report_opens_with_question_and_table_and_leaves_the_rest_to_the_details(report: str) -> None:
    lines = [line for line in report.splitlines() if line]
    assert lines[:3] == ["# exp, seed 1", "Is the strong agent better?", "## Results: toy/dev"]
    assert [line.split()[1] for line in lines[3:7]] == ["stage", "------", "weak", "strong"]
    assert "[details](details.md)" in report
    for heading in ("By hops", "## Stages", "Guessing", "Settings"):
        assert heading not in report


def test_details_show_results_by_group_in_order(details: str) -> None:
    by_hops = details[details.index("### By hops") : details.index("### By type")]
    assert by_hops.index("| 2 ") < by_hops.index("| 10 ")
    assert "| bridge" in details[details.index("### By type") :]


def test_details_show_intervals_and_measures_that_rows_of_results_leave_out(tmp_path: Path) -> None:
    row = {"dataset": "toy", "split": "dev", "n": 1, "em": 1.0}
    row |= {"true_steps": 0.5, "flawed": 0.25, "flawed_low": 0.125, "flawed_high": 0.5}
    row |= {"osr": 0.375, "osr_low": 0.3, "osr_high": 0.4, "usr": None}
    text = write(tmp_path, "exp", 0, {"eval": evaluation(tmp_path / "a", [answered(0, 1)], rows=[row])})
    details = (tmp_path / "exp" / "seed0" / "details.md").read_text()
    assert "25.0 [12.5, 50.0]" in details
    assert "true steps" in details
    assert "37.5 [30.0, 40.0]" in details
    assert "25.0 |" in text
    assert "37.5 |" in text
    assert "USR" not in text, "no row has it"
    assert "37.5 |" in (tmp_path / "exp" / "seed0" / "report.md").read_text()
    assert "true steps" not in text


def test_details_show_the_guesser_and_how_episodes_ended(details: str) -> None:
    assert "- world: guess_em 23.4" in details
    assert "- stops: answered 7, step_budget 2" in details
    assert "- limits:\n  - turns: max 4" in details
    assert "| strong | strong-1 |" in details


def test_details_tell_what_every_other_stage_made_how_long_it_took_and_where_its_own_page_is(tmp_path: Path) -> None:
    label = tmp_path / "store" / "label-1"
    label.mkdir(parents=True)
    metrics = {"pairs": 1856.0, "pairs/agreement": 0.81234567, "prm/auc": None}
    (label / "manifest.json").write_text(json.dumps({"kind": "make", "seconds": 61.4, "metrics": metrics}))
    (label / "report.md").write_text("# Pairs")
    write(tmp_path, "exp", 0, {"label": label, "eval": evaluation(tmp_path / "store" / "eval-1", [answered(0, 1)])})
    details = (tmp_path / "exp" / "seed0" / "details.md").read_text()
    row = next(line for line in details.splitlines() if line.startswith("| label"))
    assert " ".join(row.split()) == "| label | label-1 | make | [report](../../store/label-1/report.md) | 61 |"
    assert "- label: pairs 1856, pairs/agreement 0.8123, prm/auc –" in details
    assert "- eval:" not in details


def test_report_shows_one_episode_of_each_sort_from_the_last_stage_that_has_it(report: str) -> None:
    right = report[report.index("### Right (strong") : report.index("### Right by a flawed process (strong")]
    assert "Question: Question 1?" in right
    assert "1. query: who is 1? (retrieved d1, d0)" in right
    assert "Prediction: x (answered, EM 100.0, F1 100.0)" in right
    wrong = report[report.index("### Wrong (strong") :]
    assert "2. answer (not in format): x" in wrong
    assert "3. none (not in format): I forgot the tags" in wrong
    assert "Prediction: (none)" in wrong


def test_an_example_cannot_break_out_of_its_block_or_fill_the_page(tmp_path: Path) -> None:
    nasty = answered(0, 1, question="```\n# Heading\n</pre> " + "long " * 400)
    write(tmp_path, "exp", 0, {"eval": evaluation(tmp_path / "a", [nasty])})
    report = (tmp_path / "exp" / "seed0" / "report.md").read_text()
    (line,) = [line for line in report.splitlines() if "Heading" in line]
    assert line.startswith("    Question: ``` # Heading")
    assert len(line) < 330


def test_pages_hold_no_sign_that_acts_on_a_terminal(tmp_path: Path) -> None:
    bad = "\x1b[2J\r\u202e\x9b\nx"
    row = answered(1, 1, id=bad, question=bad, answers=[bad], prediction=bad, status=bad)
    row["steps"][0] |= {"text": bad, "hits": [bad], "kind": bad}
    artifact = evaluation(tmp_path / "eval", [row], notes={bad: bad})
    write(tmp_path, "toy", 0, {"eval": artifact}, question=bad)
    for name in ("report.md", "details.md"):
        page = (tmp_path / "toy" / "seed0" / name).read_text()
        assert visible(page) == page
        assert "\\x1b[2J" in page
    block = page_of_example(tmp_path / "toy" / "seed0" / "report.md")
    assert all(line.startswith("    ") for line in block), "no id can close the block of its example"


def page_of_example(path: Path) -> list[str]:
    return path.read_text().split("### Right")[1].split("\n\n", 1)[1].strip("\n").splitlines()


def test_a_reward_model_is_shown_within_kinds_of_step_with_figures(tmp_path: Path) -> None:
    ranked = step_ranking(tmp_path / "store" / "rank-1", right=3, wrong=1)
    groups = [
        {"dataset": "toy", "split": "dev", "n": 1, "em": em, "group": f"hops={h}"} for h, em in ((1, 1.0), (2, 0.5))
    ]
    judged = evaluation(tmp_path / "store" / "eval-1", [answered(0, 1)], groups=groups)
    write(tmp_path, "exp", 0, {"rank": ranked, "eval": judged})
    folder = tmp_path / "exp" / "seed0"
    text = (folder / "report.md").read_text()
    section = text[text.index("## Reward model") : text.index("## Episodes")]
    # true steps score 1, 1, 1, -1 and untrue ones -1, -1, -1, 1: (3 * 3.5 + 1.5) of 16 pairs
    assert "`prm` ranks true above untrue steps with an AUC of 0.750 [" in section
    assert "+0.250 [" in section
    assert "| prm " in section
    images = re.findall(r"\]\((figures/[^)]*)\)", text)
    assert images == ["figures/hops.svg", "figures/auc.svg", "figures/reliability.svg"]
    assert all((folder / path).read_text().startswith("<?xml") for path in images)


def test_same_artifacts_same_bytes(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 0])
    first = {path.name: path.read_bytes() for path in (tmp_path / "exp" / "seed0").iterdir()}
    write(tmp_path, "exp", 0, {"eval": tmp_path / "store" / "eval-exp-0"})
    assert {path.name: path.read_bytes() for path in (tmp_path / "exp" / "seed0").iterdir()} == first
    assert set(first) == {"results.json", "report.md", "report.html", "details.md"}


def test_an_experiment_without_evaluation_says_so(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    write(tmp_path, "exp", 0, {"world": tmp_path / "world"})
    assert "No stage of this experiment evaluates" in (tmp_path / "exp" / "seed0" / "report.md").read_text()
    assert json.loads((tmp_path / "exp" / "results.json").read_text()) == {"rows": []}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "results.json is not JSON"),
        ("[]", "results.json holds a list"),
        ('{"rows": [{"dataset": "toy", "n": 3}]}', "a row lacks 'split'"),
    ],
)
def test_malformed_results_are_named(tmp_path: Path, content: str, message: str) -> None:
    artifact = evaluation(tmp_path / "a", [answered(0, 1)])
    (artifact / "data" / "results.json").write_text(content)
    with pytest.raises(DataError, match=message):
        write(tmp_path, "exp", 0, {"eval": artifact})
    assert not (tmp_path / "exp").exists()
