"""The chat on a terminal: steps, an answer with sources, a passage in full, and failures that end one question."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.chat import chat, main
from modules.export.__main__ import main as export
from tests.asked import Passages, agent
from tests.exported import corpus, stage
from tests.micro import SMALL, WORLD, small_world


def test_steps_fold_a_passage_to_a_line_and_a_number_shows_it_whole(capsys: pytest.CaptureFixture[str]) -> None:
    chat(agent(Passages()), ["", "Who wrote it", "1", "2"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Step 1: query"
    assert lines[2].split() == ["1.000", "About", "it:", "<img", "src=x", "onerror=alert(1)>", "it\\u202e", "[doc-it]"]
    assert lines[3] == "Step 2: subanswer"
    assert lines[-5:] == [
        "Answer: it!   [answered]",
        "  [1] About it (doc-it)",
        "About it",
        "<img src=x onerror=alert(1)> it\\u202e",
        "there is no source 2: 1 to 1",
    ]


def test_a_question_that_fails_ends_alone(capsys: pytest.CaptureFixture[str]) -> None:
    chat(agent(Passages()), ["Is it down", "Who wrote it"])
    shown = capsys.readouterr()
    assert shown.err == "error: the retriever is down\n"
    assert "Answer: it!   [answered]" in shown.out


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    given: Iterator[str] = iter(lines)

    def read(_: str) -> str:
        try:
            return next(given)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)


def test_an_exported_folder_is_asked_over_a_corpus(tmp_path: Path, monkeypatch, capsys) -> None:
    out = str(tmp_path / "out")
    assert export([str(stage(tmp_path / "store")), out]) == 0
    typed(monkeypatch, "Who wrote it?")
    assert main(["--agent", out, "--corpus", str(corpus(tmp_path)), "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "out: ask a question; a number shows that source; Ctrl-D ends" in shown
    assert "Answer: " in shown


def test_a_stage_of_a_run_is_asked(tmp_path: Path, monkeypatch, capsys) -> None:
    assert small_world(tmp_path / "runs", "--stage", "eval_untrained") == 0
    typed(monkeypatch, "Who wrote it?")
    command = ["--config", str(WORLD), "--stage", "eval_untrained", f"output={tmp_path / 'runs'}"]
    assert main([*command, *SMALL]) == 0
    assert "Answer: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name an agent: --config FILE --stage STAGE, or --agent FOLDER --corpus FILE"),
        (["--config", str(WORLD)], "name an agent"),
        (["--agent", "nowhere"], "nowhere/agent.yaml is missing: export a stage"),
    ],
)
def test_a_wrong_command_ends_in_one_line(arguments: list[str], message: str, capsys) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


def test_a_folder_without_its_corpus_says_so(tmp_path: Path, capsys) -> None:
    out = str(tmp_path / "out")
    assert export([str(stage(tmp_path / "store")), out]) == 0
    for more, message in (([], "give one by --corpus FILE"), (["--corpus", "none.jsonl"], "none.jsonl: no such file")):
        assert main(["--agent", out, *more]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "out" / "agent.yaml").write_text("- no map")
    assert main(["--agent", out]) == 1
    assert "agent.yaml is damaged" in capsys.readouterr().err
