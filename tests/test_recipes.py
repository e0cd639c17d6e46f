"""Every recipe of `docs/recipes.md`, followed to the letter: its files written, its command run, its piece at work."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import train
from common.costs import split
from common.errors import RetrievalError
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.tools.routing import Tools
from envs.types import Document, Move
from evaluation.zero_shot import main as zero_shot
from pipeline.loader import load
from pipeline.plan import Plan
from tests import micro
from tests.envs.protocols.conformance import check_protocol
from tests.micro import Quickstart, artifacts
from tests.test_structure import PACKAGES
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, question

Follow = Callable[..., dict[str, Path]]  # a recipe's title, and one whose files it takes; its artifacts by stage
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(train.__file__).parent
PAGE = (ROOT / "docs" / "recipes.md").read_text()
UNTRAINED = (*micro.TINY_WORLD, *(setting for setting in micro.SMALL if "eval_untrained" in setting))
SYSTEM = (
    *micro.TINY_WORLD,
    *("devices=1", "parts.warm_up_batch=16", "parts.warm_up_epochs=10", "parts.warm_up_optimizer.lr=1e-2"),
    'stages.finder_sft.module.policy={target: "modules.policy:random_policy", tokenizer: "${parts.tokenizer}", '
    "hidden_size: 64, layers: 1, heads: 4, kv_heads: 2, feed_forward: 128}",
    f"parts.rl_questions={micro.questions(0.5, 0.7)}",
    *("stages.finder_rl.data.questions_per_iteration=2", "stages.finder_rl.data.group_size=4"),
    *("stages.finder_rl.data.micro_batch=2", "stages.finder_rl.trainer.max_epochs=2"),
)

OWN = (
    *("stages.rl.trainer.max_epochs=2", "stages.rl.data.group_size=4", "accelerator=cpu"),
    *("parts.environment.limits.turn_tokens=24", "parts.environment.limits.total_tokens=512"),
)
UNTAUGHT = (
    *("accelerator=cpu", *(f"parts.real_limits.{name}" for name in ("turns=3", "turn_tokens=8", "total_tokens=2048"))),
    'parts.encoder={target: "tests.systems.recomp.test_recomp:CountingEncoder"}',
)


def recipe(title: str) -> str:
    """A section of the page; a line of a code block is no heading."""
    lines: list[str] = []
    fenced = found = False
    for line in PAGE.splitlines(keepends=True):
        fenced ^= line.startswith("```")
        if line.startswith("## ") and not fenced:
            found = line == f"## {title}\n"
        elif found:
            lines.append(line)
    return "".join(lines)


def steps(section: str) -> list[tuple[str, str]]:
    """What a recipe has one do, in order: a file's name and its text, or no name and commands."""
    return re.findall(r"^(?:`(\S+)`\n)?```\w*\n(.*?)^```$", section, re.M | re.S)


@pytest.fixture
def follow(quickstart: Quickstart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """Does what a recipe says in a folder of its own, with the settings and the store of the small run."""

    def followed(title: str, above: str = "") -> dict[str, Path]:
        section = recipe(title)
        for name, text in steps(recipe(above) + section):
            if name:
                (tmp_path / name).write_text(text)
        (command,) = re.findall(r"^```\npython train\.py (.*?)(?:\s+#.*)?$", section, re.M)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        flag, name, *arguments = shlex.split(command)
        config = (tmp_path / name).read_text()
        base = "".join(re.findall(r"^base: \[(.*)\]$", config, re.M))
        own = [f"parts.model={artifacts(quickstart.output)['sft'] / 'model'}", *OWN]
        chains = {"quickstart.yaml": micro.CHAIN, "base/pairs.yaml": micro.CHAIN}
        small = (chains | {"": own}).get(base, UNTRAINED)
        assert flag == "--config"
        assert micro.run(*arguments, *small, f"output={quickstart.output}", config=Path(name)) == 0
        model = small[:1] if base == "" else ()  # there need not be a large one here
        Plan.of(load(Path(name), [f"output={quickstart.output}", *model])).checked()  # whole, too: without --stage
        return artifacts(quickstart.output, re.findall(r"^experiment: (\w+)$", config, re.M)[0])

    return followed


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_your_own_model_and_questions(follow: Follow) -> None:
    made = follow("Your own model and questions")
    costs = json.loads((made["rl"] / "manifest.json").read_text())["costs"]
    assert costs["updates"] == 2
    assert (made["rl"] / "adapter" / "adapter_config.json").exists()
    for stage in ("eval_before", "eval_after"):
        [row] = rows(made[stage] / "data" / "predictions-mine-test.jsonl")
        assert (row["id"], row["answers"]) == ("2", ["Oslo"])


def test_all_inference_methods_on_your_own_questions(
    quickstart: Quickstart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in steps(recipe("Your own model and questions")):
        if name.endswith(".jsonl"):
            Path(name).write_text(text)
    [(_, command)] = steps(recipe("All inference methods on your own questions"))
    python, flag, module, *arguments = shlex.split(command)
    assert (python, flag, module) == ("python", "-m", "evaluation.zero_shot")
    small = [f"--model={artifacts(quickstart.output)['sft'] / 'model'}", "--encoder=untold", *UNTAUGHT]
    monkeypatch.setattr(os, "execv", lambda _, run: sys.exit(micro.run(*run[4:], config=Path(run[3]))))
    with pytest.raises(SystemExit, match="0"):
        zero_shot([*arguments, *small, f"output={quickstart.output}"])
    made = artifacts(quickstart.output, "zero_shot_model")
    methods = {"naive", "standard_rag", "iter_retgen", "ircot", "flare", "search_o1", "react", "auto_rag"}
    compressors = {"recomp_extractive", "recomp_abstractive", "longllmlingua", "selective_context"}
    assert {f"eval_{name}" for name in methods | compressors} == set(made)
    for stage, folder in made.items():
        assert len(rows(folder / "data" / "predictions-questions-all.jsonl")) == 2
        [result] = json.loads((folder / "data" / "results.json").read_text())["rows"]
        assert result["tokens"] > 0
        assert (result["read_tokens"] is not None) == (stage.removeprefix("eval_") in compressors)
        assert stage != "eval_standard_rag" or result["searches"] == 1
    report = (quickstart.output / "zero_shot_model" / "seed0" / "report.md").read_text()
    assert all(f" {column} |" in report for column in ("EM", "F1", "cover", "searches", "tokens", "tokens read"))
    assert "eval_react on questions: 0 % of the answers follow the format" in capsys.readouterr().out


def test_a_reward(quickstart: Quickstart, follow: Follow) -> None:
    made = follow("A reward")
    events = EventAccumulator(str(quickstart.output / "brevity" / "seed0" / "rl")).Reload()
    values = [event.value for event in events.Scalars("rewards/brevity/mean")]
    assert len(values) == 2
    assert all(0 < value <= 1 for value in values), "most of what is sampled searches once or twice"
    assert made["rl"] != artifacts(quickstart.output)["rl"]


def test_a_credit_function(quickstart: Quickstart, follow: Follow) -> None:
    made, whole = follow("A credit function"), artifacts(quickstart.output)
    assert made["rft"] == whole["rft"]
    weights = [folder / "model" / "model.safetensors" for folder in (made["rl"], whole["rl"])]
    assert weights[0].read_bytes() != weights[1].read_bytes()


def test_a_judge(follow: Follow) -> None:
    pairs = rows(follow("A judge")["label"] / "data" / "pairs.jsonl")
    assert {pair["reason"] for pair in pairs} == {"shorter"}


def test_a_dataset(follow: Follow) -> None:
    predictions = rows(follow("A dataset")["eval_untrained"] / "data" / "predictions-sheet-test.jsonl")
    assert [row["id"] for row in predictions] == [f"sheet-{number}" for number in range(1, len(predictions) + 1)]
    assert all(row["question"] and row["answers"] for row in predictions)


def test_a_protocol(follow: Follow) -> None:
    predictions = rows(follow("A protocol")["eval_untrained"] / "data" / "predictions-world-test.jsonl")
    kinds = {step["kind"] for row in predictions for step in row["steps"]}
    assert len(predictions) == 8
    assert set() < kinds <= {"query", "answer", "invalid"}
    lines = importlib.import_module("my_protocol").Lines(byte_tokenizer())
    check_protocol(lines, [Move("search", "first program"), Move("conclude", "Ada")], "Ada")


def test_a_retriever(follow: Follow) -> None:
    made = follow("A retriever")
    predictions = rows(made["eval_teacher"] / "data" / "predictions-world-test.jsonl")
    titles = {row["id"]: set(row["title"].lower().split()) for row in rows(made["world"] / "data" / "corpus.jsonl")}
    searches = [step for row in predictions for step in row["steps"] if step["hits"]]
    assert len(searches) >= len(predictions) == 8
    for step in searches:
        asked = set(step["text"].lower().split())
        shares = {name: len(asked & title) / len(title) for name, title in titles.items()}
        assert shares[step["hits"][0]] == max(shares.values())


def test_a_tool(follow: Follow, tmp_path: Path) -> None:
    made = follow("A tool")
    manifest = json.loads((made["eval_teacher"] / "manifest.json").read_text())
    searches = sum(row["searches"] for row in rows(made["eval_teacher"] / "data" / "predictions-world-test.jsonl"))
    assert manifest["costs"]["tool_calls"] == {"search": searches}
    assert searches >= 8

    shutil.copy(ROOT / "tests" / "fixtures" / "mcp_server.py", tmp_path / "server.py")
    mcp = importlib.import_module("mcp_tool").MCP([sys.executable, "server.py"], "weather", "city")
    tools = Tools(FixedRetriever([]), {"letters": importlib.import_module("my_tool").Letters(), "mcp": mcp})
    queries = ["letters: zebra", "letters: 1", "mcp: Oslo", "mcp: nowhere"]
    shown = [hit.shown for [hit] in tools.search(queries, 3)]
    assert shown == ["5", "error: ask for one word", "weather of Oslo", "error: no such city"]
    for _ in range(2):
        with pytest.raises(RetrievalError, match="has ended"):
            tools.search(["mcp: end"], 3)
    _, costs = split(tools.counts)
    assert costs["tool_calls"] == {"letters": 2, "mcp": 4}
    assert costs["tool_failures"] == {"letters": 1, "mcp": 3}


def test_a_sampler(follow: Follow) -> None:
    predictions = rows(follow("A sampler")["eval_guess"] / "data" / "predictions-world-test.jsonl")
    assert len(predictions) == 8
    assert {row["prediction"] for row in predictions} == {"Turnonia"}
    assert {(row["status"], len(row["steps"])) for row in predictions} == {("answered", 1)}


def test_an_inference_baseline(follow: Follow) -> None:
    predictions = rows(follow("An inference baseline")["eval_untrained"] / "data" / "predictions-world-test.jsonl")
    assert len(predictions) == 8
    assert all([step["kind"] for step in row["steps"]] == ["query", "query", "answer"] for row in predictions)
    baseline = importlib.import_module("my_baseline").RewriteOnce(byte_tokenizer())
    check_protocol(baseline, [Move("search", "author of it"), Move("conclude", "Ada")], "Ada")
    environment = RetrievalEnvironment(baseline, FixedRetriever([Document("d", "T", "Ada wrote it.")]))
    says = {1: "author of it", 2: "Ada"}
    sampler = Scripted(baseline.codec.control, lambda episode: says[len(episode.turns)])
    [episode] = rollout(environment, sampler, [question()], seed=0)
    assert environment.retriever.queries == ["Who wrote it?", "author of it"]  # type: ignore[union-attr]
    assert episode.answer == "Ada"
    assert [len(turn.context_ids or ()) > 0 for turn in episode.turns] == [False, True, True]


def test_a_system(quickstart: Quickstart, tmp_path: Path) -> None:
    """In a copy of the suite: files and commands of the recipe, training at a smaller size, the rules of the house."""
    suite = tmp_path / "suite"
    names = ("train.py", "pyproject.toml", "assets", "configs", "docs", "examples", "tests", *PACKAGES)
    suite.mkdir()
    for path in (*(ROOT / name for name in names), *ROOT.glob("*.md")):
        (shutil.copytree if path.is_dir() else shutil.copy)(path, suite / path.name)

    def call(*command: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(suite)}
        done = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    settings = (*SYSTEM, f"output={quickstart.output}")
    [(name, text)] = [step for step in steps(recipe("A protocol")) if step[0].endswith(".py")]
    (suite / name).write_text(text)
    written: list[Path] = []
    for name, text in steps(recipe("A system")):
        if name:
            written.append(Path(name))
            (suite / name).write_text(text)
            continue
        for command in text.splitlines():
            python, *arguments = shlex.split(command)
            call(*([sys.executable, *arguments, *settings] if python == "python" else [python, *arguments]))
    (suite / "my_protocol.py").unlink()
    assert {path.parent.as_posix() for path in written} == {"systems/finder", "configs/finder"}
    assert len(list((suite / "systems" / "finder").glob("*.*"))) <= 5
    rules = "finder or system or import or circle or share or page or docs"
    call(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_structure.py", "-k", rules)

    made = artifacts(quickstart.output, "finder")
    values = [
        event.value for event in micro.scalars(quickstart.output, "finder_rl", "finder").Scalars("rewards/found/mean")
    ]
    assert len(values) == 2
    assert any(values), "what the teacher has shown finds passages"
    rows_of = {stage: rows(made[stage] / "data" / "predictions-world-test.jsonl") for stage in made if "eval" in stage}
    assert {stage: len(predictions) for stage, predictions in rows_of.items()} == {
        "eval_finder_sft": 8,
        "eval_finder_rl": 8,
    }
    costs = json.loads((made["finder_rl"] / "manifest.json").read_text())["costs"]
    assert costs["updates"] == 2
    assert costs["tokens"]["policy"] > 0
    whole = Plan.of(load(suite / "configs" / "finder" / "compare.yaml", [f"output={quickstart.output}"]))
    assert {"finder_rl", "prorag_rl", "search_r1_rl", "hiprag_rl", "eval_naive"} <= set(whole.stages)
    assert whole.stages["finder_rl"].stage.callbacks["budget"] == whole.stages["hiprag_rl"].stage.callbacks["budget"]
