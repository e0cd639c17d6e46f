"""The agent loop from the command line: the small world, small, with its promises and its failures."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest
import yaml

from datamodules.records import read_rows
from tests.micro import SMALL, run, small_world


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs")
    assert small_world(output) == 0
    return output


def results(output: Path) -> dict[str, dict]:
    rows = json.loads((output / "world" / "results.json").read_text())["rows"]
    return {row["stage"]: row for row in rows}


def predictions(output: Path, stage: str) -> bytes:
    [path] = output.glob(f"store/{stage}-*/data/predictions-world-test.jsonl")
    return path.read_bytes()


def test_the_teacher_solves_the_world_and_an_untrained_policy_does_not(finished: Path) -> None:
    rows = results(finished)
    assert rows["eval_teacher"]["em"] >= 0.95
    assert rows["eval_teacher"]["flawed"] == 0
    assert rows["eval_teacher"]["valid_steps"] == 1
    assert rows["eval_untrained"]["em"] <= 0.05


def test_the_page_tells_what_guessing_scores_far_below_the_teacher(finished: Path) -> None:
    page = (finished / "world" / "seed0" / "report.html").read_text()
    (em,) = re.findall(r"would score, in percent: .*?world guess_em ([\d.]+)[,.<]", page)
    assert float(em) < 45  # a world of 40 people leaks more than the real one


def test_again_everything_is_done_and_nothing_is_written(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in (finished / "store").rglob("*") if path.is_file()}
    assert small_world(finished) == 0
    printed = capsys.readouterr().out
    assert [line.split(",")[0] for line in printed.splitlines()[:3]] == [
        "world: done", "eval_teacher: done", "eval_untrained: done",
    ]  # fmt: skip
    assert {path: path.stat().st_mtime_ns for path in (finished / "store").rglob("*") if path.is_file()} == before


def test_the_same_seed_gives_the_same_bytes_and_another_seed_another_world(finished: Path, tmp_path: Path) -> None:
    assert small_world(tmp_path / "same") == 0
    for stage in ("eval_teacher", "eval_untrained"):
        assert predictions(tmp_path / "same", stage) == predictions(finished, stage)
    assert small_world(tmp_path / "other", "seed=1", "--stage", "eval_teacher") == 0
    assert predictions(tmp_path / "other", "eval_teacher") != predictions(finished, "eval_teacher")


def test_hits_and_queries_of_the_teacher_are_in_its_predictions(finished: Path) -> None:
    [path] = finished.glob("store/eval_teacher-*/data/predictions-world-test.jsonl")
    for row in read_rows(path, None):
        assert [step["kind"] for step in row["steps"]] == ["query", "subanswer"] * row["hops"] + ["answer"]
        assert all(step["hits"] for step in row["steps"] if step["kind"] == "query")
        assert row["recall"] == 1


def test_a_retriever_that_is_down_ends_with_one_line_and_no_result(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    retriever = {"target": "envs.retrievers.http:HTTPRetriever", "url": url, "retries": 1, "backoff": 0.01}
    override = f"parts.test.world.retriever={json.dumps(retriever)}"
    assert small_world(tmp_path, override, "--stage", "eval_teacher") == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert url in error
    [artifact] = tmp_path.glob("store/eval_teacher-*")
    assert not (artifact / "manifest.json").exists()
    assert not list(artifact.rglob("*.jsonl"))


def test_a_prompt_that_leaves_no_room_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert small_world(tmp_path, "parts.limits.total_tokens=5", "--stage", "eval_untrained") == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "no prompt leaves room for a turn" in error
    assert "limits.total_tokens (5)" in error


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('{"id": "a", "question": "Who?", "answers": []}\n', "questions.jsonl:1: question 'a' has no answer"),
        ('{"id": "a", "question": "Who?", "answers": ["x"]}\nnot json\n', "questions.jsonl:2: not valid JSON"),
        ("", "no usable question"),
    ],
)
def test_a_bad_question_file_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: str, message: str
) -> None:
    (tmp_path / "questions.jsonl").write_text(rows)
    source = {"target": "datamodules.sources.rows:Rows", "path": str(tmp_path / "questions.jsonl")}
    override = f"parts.test.world.questions={json.dumps(source)}"
    assert small_world(tmp_path / "runs", override, "--stage", "eval_untrained") != 0
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error


def test_a_misspelt_setting_is_found_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert small_world(tmp_path / "runs", "parts.limits.turn_token=5") == 2
    assert "did you mean 'turn_tokens'?" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "store").exists()


def test_an_experiment_of_ones_own_needs_only_a_file(tmp_path: Path, finished: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump(
            {
                "base": ["world.yaml"],
                "experiment": "mine",
                "output": str(finished),
                "stages": {"eval_untrained": None, "eval_teacher": {"data": {"pool": 8}}},
            }
        )
    )
    small = (setting for setting in SMALL if setting.startswith("stages.world."))
    assert run(*small, config=tmp_path / "mine.yaml") == 0
    assert len(list(finished.glob("store/world-*"))) == 1  # the small world's world is used again
    rows = json.loads((finished / "mine" / "results.json").read_text())["rows"]
    assert [row["stage"] for row in rows] == ["eval_teacher"]
