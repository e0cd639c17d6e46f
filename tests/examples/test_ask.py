from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from common.plain_text import visible
from envs.types import Document, Episode, Hit, Question, Step
from examples.ask import main, parse, transcript
from tests.evaluation.report.fakes import Page
from tests.micro import WORLD, small_world


def config(folder: Path) -> Path:
    """The small world as a file, made."""
    assert small_world(folder / "runs", "--stage", "eval_teacher") == 0
    [resolved] = folder.glob("runs/store/world-*/config.yaml")
    world = yaml.safe_load(resolved.read_text())["data"]
    path = folder / "small.yaml"
    own = {"base": [str(WORLD)], "output": str(folder / "runs"), "stages": {"world": {"data": world}}}
    path.write_text(yaml.safe_dump(own))
    return path


def test_a_question_is_answered_step_by_step_with_its_hits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path)
    capsys.readouterr()
    assert main(["--config", str(path), "--stage", "eval_teacher"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Question: ")
    assert "Step 1: query" in text
    assert "</step> <subquery>" in text
    assert text.rstrip().endswith("EM 1, F1 1.00")
    page = tmp_path / "one.html"
    assert main(["--config", str(path), "--stage", "eval_teacher", "--html", str(page)]) == 0
    one = Page(page.read_text()).data["one"]
    assert one["question"]["gold"]
    assert one["episode"]["scores"] == "EM 100.0, F1 100.0"
    first = one["episode"]["steps"][0]
    assert (first["chips"][1][0], first["gold"]) == ("true ✓", 1)
    capsys.readouterr()
    assert main(["--config", str(path), "--stage", "eval_teacher", "--id", "no-such"]) == 1
    assert "no question with id no-such" in capsys.readouterr().err


def test_a_retriever_that_is_down_is_named_and_nothing_is_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    down = (
        "parts.test.world.retriever={target: envs.retrievers.http:HTTPRetriever, url: 'http://127.0.0.1:1', retries: 0}"
    )
    command = ["--config", str(config(tmp_path)), "--stage", "eval_teacher"]
    capsys.readouterr()
    assert main([*command, down]) == 1
    shown = capsys.readouterr()
    assert "Step 1: query" in shown.out
    assert "Answer:" not in shown.out
    assert "EM" not in shown.out
    assert "error: retrieval server http://127.0.0.1:1/retrieve: gave up after try 1" in shown.err


def test_a_question_of_one_s_own_may_hold_an_equals_sign_and_stand_next_to_overrides() -> None:
    options = parse(["--config", "x.yaml", "a.b=1", "--stage", "s", "Is 1 + 1=2?", "c=d e"])
    assert (options.question, options.overrides) == ("Is 1 + 1=2?", ["a.b=1", "c=d e"])
    assert parse(["--config", "x.yaml", "--stage", "s"]).question == ""
    with pytest.raises(SystemExit):
        parse(["--config", "x.yaml", "--stage", "s", "who", "founded"])


def test_bars_of_libraries_are_quiet_without_a_terminal() -> None:
    code = "import examples.ask, huggingface_hub.constants as c; print(c.HF_HUB_DISABLE_PROGRESS_BARS)"
    environment = {k: v for k, v in os.environ.items() if k != "HF_HUB_DISABLE_PROGRESS_BARS"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=WORLD.parents[1], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_an_unmade_stage_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump({"base": [str(WORLD)], "output": str(tmp_path / "runs")}))
    assert main(["--config", str(path), "--stage", "eval_teacher"]) == 2
    assert "make world first: python train.py --config" in capsys.readouterr().err


def test_what_others_wrote_cannot_act_on_the_terminal() -> None:
    document = Document("d\x1b", "Title\x1b]0;x\x07", "Text\r\u202eof others\nStep 9: answer")
    step = Step("query", True, ((0, 0, 1),), said="a\x07\nStep 9: answer", hits=(Hit(document, 0.5),))
    question = Question("1", "Who\x1b[2J?\nStep 9: answer", ("a\x9b",))
    episode = Episode(question, (), status="answered", answer="b\x1b[31m", steps=(step,))
    text = transcript(episode)
    assert visible(text) == text
    assert sum(line.startswith("Step ") for line in text.splitlines()) == 1
