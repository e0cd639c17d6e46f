"""The recipe of inference methods that learn, followed to the letter at a smaller size."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipeline.loader import load
from pipeline.plan import Plan
from tests import micro
from tests.micro import artifacts
from tests.test_recipes import ROOT, UNTAUGHT, recipe, rows, steps
from tests.tiny import byte_tokenizer, tiny_policy

pytestmark = pytest.mark.slow

TAUGHT_QUESTIONS = {"real.own.questions": 3, "router_questions": 2, "router_hop_questions": 8, "self_rag_questions": 6}

IN_BYTES = (
    *(f"parts.self_rag_limits.{name}" for name in ("turn_tokens=300", "observation_tokens=1500", "total_tokens=4000")),
    *("parts.self_rag_chained.segment_tokens=300", "parts.self_rag_compared.segment_tokens=300"),
)


def test_inference_methods_that_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples" / "own_data", tmp_path / "examples" / "own_data")
    tiny_policy(byte_tokenizer([])).save(tmp_path / "models" / "SmolLM2-135M-Instruct")
    [(name, text), (_, command)] = steps(recipe("Inference methods that learn"))
    assert len(text.splitlines()) <= 20
    (tmp_path / name).write_text(text)
    assert command == f"python train.py --config {name}\n"
    sample = (f"parts.{part}.sample={count}" for part, count in TAUGHT_QUESTIONS.items())
    stages = ("--stage", "eval_self_rag", "eval_adaptive_rag")
    assert micro.run(*stages, *UNTAUGHT, *IN_BYTES, *sample, f"output={tmp_path / 'runs'}", config=Path(name)) == 0
    made = artifacts(tmp_path / "runs", "thirteen")
    labels = json.loads((made["route_labels"] / "data" / "labels.json").read_text())
    assert labels["hops/B"] + labels["hops/C"] == TAUGHT_QUESTIONS["router_hop_questions"]
    assert labels["hops/B"] > 0 < labels["hops/C"]
    assert len(rows(made["teach_self_rag"] / "data" / "episodes.jsonl")) == TAUGHT_QUESTIONS["self_rag_questions"]
    for stage in ("eval_self_rag", "eval_adaptive_rag"):
        assert len(rows(made[stage] / "data" / "predictions-own-test.jsonl")) == 3
    every = Plan.of(load(Path(name), [])).stages
    assert sum(stage.startswith("eval_") for stage in every) == 14, "thirteen, RECOMP in two forms"
