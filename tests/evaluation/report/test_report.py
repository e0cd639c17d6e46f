from __future__ import annotations

import json
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
VALID = {"none": 0.02, "some": 0.1, "unknown": None}


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


def test_a_model_that_follows_no_format_is_named(tmp_path: Path) -> None:
    rows = [{"dataset": "toy", "split": name, "n": 50, "em": 0.0, "valid_episodes": v} for name, v in VALID.items()]
    text = write(tmp_path, "exp", 0, {"eval": evaluation(tmp_path / "a", [answered(0, 1)], rows=rows)})
    for shown in (text, (tmp_path / "exp" / "seed0" / "report.md").read_text()):
        lines = [line for line in shown.splitlines() if "follow the format" in line]
        assert [line.partition(", so")[0] for line in lines] == ["eval on toy: 2 % of the answers follow the format"]


def test_the_report_opens_with_question_and_table_and_leaves_the_rest_to_the_page(tmp_path: Path) -> None:
    world = tmp_path / "store" / "world-1"
    world.mkdir(parents=True)
    (world / "manifest.json").write_text(json.dumps({"metrics": {"facts": 9}, "seconds": 1.0}))
    row = {"dataset": "toy", "split": "dev", "n": 1, "em": 1.0, "true_steps": 0.5, "osr": 0.375, "usr": None}
    artifacts = {
        "world": world,
        "weak": evaluation(tmp_path / "store" / "weak-1", [answered(0, 0), answered(1, 0)]),
        "strong": evaluation(tmp_path / "store" / "strong-1", [answered(0, 1)], rows=[row]),
    }
    headline = write(tmp_path, "exp", 1, artifacts, question="Is the strong agent better?")
    report = (tmp_path / "exp" / "seed1" / "report.md").read_text()
    lines = [line for line in report.splitlines() if line]
    assert lines[:3] == ["# exp, seed 1", "Is the strong agent better?", "## Results: toy/dev"]
    assert [line.split()[1] for line in lines[3:7]] == ["stage", "------", "weak", "strong"]
    assert "[report.html](report.html)" in report
    for text in (headline, report):
        assert "37.5 |" in text
        assert "USR |" not in text, "no row has it"
        assert "true steps" not in text


def test_the_report_holds_no_sign_that_acts_on_a_terminal(tmp_path: Path) -> None:
    bad = "\x1b[2J\r\u202e\x9b\nx"
    row = answered(1, 1, id=bad, question=bad, answers=[bad], prediction=bad, status=bad)
    row["steps"][0] |= {"text": bad, "hits": [bad], "kind": bad}
    artifact = evaluation(tmp_path / "eval", [row], notes={bad: bad})
    write(tmp_path, "toy", 0, {"eval": artifact}, question=bad)
    page = (tmp_path / "toy" / "seed0" / "report.md").read_text()
    assert visible(page) == page
    assert "\\x1b[2J" in page


def test_a_reward_model_is_told_within_kinds_of_step(tmp_path: Path) -> None:
    write(tmp_path, "exp", 0, {"rank": step_ranking(tmp_path / "store" / "rank-1", right=3, wrong=1)})
    text = (tmp_path / "exp" / "seed0" / "report.md").read_text()
    section = text[text.index("## Reward model") :]
    # true steps score 1, 1, 1, -1 and untrue ones -1, -1, -1, 1: (3 * 3.5 + 1.5) of 16 pairs
    assert "`prm` ranks true above untrue steps with an AUC of 0.750 [" in section
    assert "+0.250 [" in section
    assert "| exp " in section, "the tables of a page of results"


def test_same_artifacts_same_bytes(tmp_path: Path) -> None:
    run(tmp_path, "exp", [1, 0])
    first = {path.name: path.read_bytes() for path in (tmp_path / "exp" / "seed0").iterdir()}
    write(tmp_path, "exp", 0, {"eval": tmp_path / "store" / "eval-exp-0"})
    assert {path.name: path.read_bytes() for path in (tmp_path / "exp" / "seed0").iterdir()} == first
    assert set(first) == {"results.json", "report.md", "report.html"}


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
