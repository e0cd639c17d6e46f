"""Exported folders: plain transformers samples the suite's tokens, the card has the facts, nothing is half written."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from envs.retrievers.bm25 import BM25
from examples.agents import exported_agent
from modules.export.__main__ import main
from tests.exported import PRORAG, corpus, stage
from tests.micro import Quickstart, artifacts

QUESTIONS = ("Who wrote it?", "Who <answer> read ＜step＞ it?")
SEARCH_R1 = {"target": "systems.search_r1.protocol:SearchR1", "searches": 3}
HIPRAG = {"target": "systems.hiprag.protocol:HiPRAG"}
command = importlib.import_module("modules.export.__main__")


def plain(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the lines of the card define, run as they stand in their folder."""
    [lines] = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)
    names: dict[str, Any] = {}
    with monkeypatch.context() as there:
        there.chdir(folder)
        exec(lines, names)
    return names


def check_same_turns(folder: Path, passages: Path, questions: tuple[str, ...], monkeypatch: Any) -> list[str]:
    """The answers, once every turn has the token ids of the suite's own sampler."""
    retriever, names = BM25(passages), plain(folder, monkeypatch)
    agent = exported_agent(folder, passages, "cpu")

    def search(query: str, k: int) -> list[tuple[str, str]]:
        return [(hit.document.title, hit.document.text) for hit in retriever.search([query], k)[0]]

    for episode in (episodes := agent.answer(questions)):
        answer, turns = names["ask"](episode.question.text, search)
        assert turns == [list(turn.action_ids) for turn in episode.turns]
        assert answer == episode.answer
    return [episode.answer for episode in episodes]


@pytest.mark.parametrize("protocol", [PRORAG, SEARCH_R1, HIPRAG], ids=lambda each: each["target"].rpartition(":")[2])
def test_the_lines_of_the_card_give_the_suite_s_tokens(protocol: Any, tmp_path: Path, monkeypatch: Any) -> None:
    artifact = stage(tmp_path / "store", protocol=protocol)
    assert main([str(artifact), str(tmp_path / "out")]) == 0
    check_same_turns(tmp_path / "out", corpus(tmp_path), QUESTIONS, monkeypatch)


@pytest.mark.slow
def test_a_trained_agent_searches_and_answers_alike(quickstart: Quickstart, tmp_path: Path, monkeypatch: Any) -> None:
    out, made = tmp_path / "out", artifacts(quickstart.output)
    assert main([f"{quickstart.output}/quickstart/seed0:rl", str(out)]) == 0
    data = made["world"] / "data"
    rows = [json.loads(line) for line in (data / "questions.jsonl").read_text().splitlines()]
    answers = check_same_turns(out, data / "corpus.jsonl", tuple(row["text"] for row in rows[:8]), monkeypatch)
    assert len({*answers} - {""}) > 1, "a policy that answers nothing would show nothing"
    card = (out / "README.md").read_text()
    [row] = json.loads((made["eval_rl"] / "data" / "results.json").read_text())["rows"]
    figures = "{em:.1f} [{em_low:.1f}, {em_high:.1f}]".format(**{key: 100 * row[key] for key in row if key[:2] == "em"})
    assert f"| eval_rl | world | test | 8 | {figures} |" in card
    assert "| sample | WorldQuestions |" in card, "what refinement was trained on"


def test_the_folder_says_how_it_is_asked_and_what_it_is(tmp_path: Path) -> None:
    artifact, out = stage(tmp_path / "store"), tmp_path / "out"
    (artifact / "model" / "config.json").chmod(0o600)
    assert main([str(artifact), str(out)]) == 0
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o644}
    assert out.stat().st_mode & 0o777 == 0o755
    agent = yaml.safe_load((out / "agent.yaml").read_text())
    assert (agent["format"], agent["instruction"], agent["top_k"]) == ("ProRAG", "Search, then answer.", 2)
    assert agent["limits"] == {"turns": 4, "turn_tokens": 12, "observation_tokens": 40, "total_tokens": 1200}
    assert agent["environment"]["protocol"]["tokenizer"] == "."
    assert agent["retriever"]["corpus"] == "corpus.jsonl"
    settings = json.loads((out / "generation_config.json").read_text())
    assert (settings["eos_token_id"], settings.get("temperature")) == ([agent_end(out)], None)
    card = (out / "README.md").read_text()
    assert "base_model: ada/tiny" in card
    assert "| eval_rl | mine | test | 4 | 25.0 [0.0, 75.0] | 1.50 |" in card
    assert "| rl | Rows | path mine.jsonl, split train |" in card
    assert "/home/ada" not in card + (out / "agent.yaml").read_text()


def agent_end(folder: Path) -> int:
    from envs.text import load_tokenizer

    return load_tokenizer(folder).convert_tokens_to_ids("<|im_end|>")


def test_a_format_that_needs_the_suite_says_so_in_its_card(tmp_path: Path) -> None:
    artifact = stage(tmp_path / "store", protocol={"target": "systems.reasonrag.protocol:ReasonRAG"})
    assert main([str(artifact), str(tmp_path / "out")]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "needs the suite: its context is written anew in every turn" in card
    assert "python -m examples.chat --agent FOLDER --corpus corpus.jsonl" in card


def test_what_fails_in_between_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact, out = stage(tmp_path / "store"), tmp_path / "made" / "out"

    def broken(*_: Any, **__: Any) -> str:
        assert (out.with_name(".out.tmp") / "model.safetensors").exists()
        raise OSError("the disk is full")

    monkeypatch.setattr(command, "model_card", broken)
    with pytest.raises(OSError, match="full"):
        main([str(artifact), str(out)])
    assert [path.name for path in out.parent.iterdir()] == [".out.lock"]


def test_a_wrong_command_ends_in_one_line(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    artifact, out = stage(tmp_path / "runs/store"), str(tmp_path / "out")
    run = tmp_path / "runs" / "mine" / "seed0"
    run.mkdir(parents=True)
    (run / "stages.json").write_text(json.dumps({"rl": f"store/{artifact.name}"}))
    evaluation = str(tmp_path / "runs/store/eval_rl-0123456789ab")
    (unfinished := tmp_path / "runs/store/sft-1").mkdir()
    capsys.readouterr()
    for arguments, code, message in [
        ((f"{run}:sft", out), 2, "has no finished stage sft; it has: rl"),
        (("runs/none:rl", out), 2, "runs/none/stages.json is missing"),
        (("nowhere", out), 2, "no stage at nowhere"),
        ((evaluation, out), 2, "has no model: export a stage that trained one policy"),
        ((str(unfinished), out), 1, "is unfinished: run its experiment again"),
        ((str(artifact), out, "--adapter"), 2, "has no adapter: it trained all weights"),
        ((str(artifact), str(tmp_path)), 2, "exists: choose another folder"),
    ]:
        assert main(arguments) == code
        shown = capsys.readouterr().err
        assert shown.startswith("error: ")
        assert message in shown
        assert shown.count("\n") == 1
        assert not Path(out).exists()
    monkeypatch.chdir(tmp_path)
    assert main(["mine/seed0:rl", out]) == 0, "runs/ may be left out"
    (run / "stages.json").write_text("{")
    assert main([f"{run}:rl", f"{out}2"]) == 1
    assert "stages.json is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("base", ["folder", "ada/tiny"])
def test_a_kept_adapter_names_its_base_for_any_folder_to_be_read_from(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modules.lora import LoRA, save_adapters
    from modules.policy import load_policy

    artifact = stage(tmp_path / "store", seed=1)
    policy = load_policy(str(artifact / "model"), device="cpu")
    policy.save(tmp_path / "folder")
    LoRA(r=2).apply(policy)
    state = {name: value + 0.05 for name, value in policy.model.state_dict().items() if "lora_" in name}
    policy.model.load_state_dict(state, strict=False)
    save_adapters(policy, policy.model.state_dict(), artifact / "adapter")
    settings = artifact / "adapter" / "adapter_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"base_model_name_or_path": base}))
    monkeypatch.chdir(tmp_path)
    assert main([str(artifact), "out", "--adapter"]) == 0
    named = json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == (str(tmp_path / "folder") if base == "folder" else base)
    if base == "folder":
        check_same_turns(tmp_path / "out", corpus(tmp_path), QUESTIONS[:1], monkeypatch)


def test_a_push_is_one_commit_and_a_refusal_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    class Hub:
        def create_repo(self, name: str, **settings: Any) -> None:
            calls.append((name, settings))

        def upload_folder(self, **settings: Any) -> None:
            calls.append(("upload", settings))
            if settings["repo_id"] == "bob/theirs":
                raise OSError("403 Forbidden\nmore")

    monkeypatch.setattr(command, "HfApi", Hub)
    artifact, out = str(stage(tmp_path / "store")), tmp_path / "out"
    assert main([artifact, str(out), "--push", "ada/mine"]) == 0
    assert calls[0] == ("ada/mine", {"private": True, "exist_ok": True})
    assert (calls[1][1]["repo_id"], calls[1][1]["folder_path"]) == ("ada/mine", out)
    assert main([artifact, str(tmp_path / "two"), "--push", "bob/theirs"]) == 1
    shown = capsys.readouterr().err
    assert "bob/theirs: the hub refuses: 403 Forbidden (`hf auth login` signs in); then: hf upload bob/theirs" in shown
    assert (tmp_path / "two" / "README.md").exists()
