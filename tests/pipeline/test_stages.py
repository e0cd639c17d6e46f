"""What a stage's pieces get beside their settings, and what is left of a stage when it is finished."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import train
from pipeline.launcher import Ranks
from pipeline.loader import load
from pipeline.plan import Plan
from pipeline.stages import run_stage
from tests import micro

SLOPE = {"module": {"target": "tests.toy_training:Slope"}}


@pytest.mark.parametrize(("given", "seed"), [({}, 5), ({"seed": 1}, 1)])
def test_the_data_of_a_fit_has_the_seed_of_the_experiment_unless_it_is_given_its_own(
    given: dict[str, int], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = []

    def fit(module: Any, data: Any, *_: Any, **__: Any) -> dict[str, Any]:
        seeds.append(data.seed)
        return {}

    monkeypatch.setattr("pipeline.fitting.fit", fit)
    stages = {"fit": SLOPE | {"data": {"target": "tests.toy_training:Line"} | given}}
    config = {"experiment": "toy", "seed": 5, "output": str(tmp_path / "runs"), "stages": stages}
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(config))
    run_stage("fit", Plan.of(load(tmp_path / "toy.yaml")), Ranks())
    assert seeds == [seed]


def test_a_manifest_says_what_its_components_say(tmp_path: Path) -> None:
    parts = [{"target": "tests.toys:Noted", "text": text} for text in ("toy 1", "toy 2", "toy 1")]
    stages = {"make": {"data": {"target": "tests.toys:NumbersOf", "count": 1, "parts": parts}}}
    config = {"experiment": "toy", "output": str(tmp_path / "runs"), "stages": stages}
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(config))
    plan = Plan.of(load(tmp_path / "toy.yaml"))
    run_stage("make", plan, Ranks())
    assert plan.stages["make"].artifact.manifest()["engine"] == "toy 1; toy 2"


def models() -> list[torch.nn.Module]:
    """Every module with weights that is alive, in a cycle or not."""
    modules = [item for item in gc.get_objects() if issubclass(type(item), torch.nn.Module)]
    return [module for module in modules if next(module.parameters(), None) is not None]


def test_after_a_stage_no_model_of_it_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = f"""\
base: {micro.WORLD}
stages:
  eval_teacher: null
  eval_untrained: {{data: {{sampler: {{policy: {{hidden_size: 32, layers: 1, feed_forward: 32}}}}}}}}
  again: {{like: eval_untrained, data: {{sampler: {{policy: {{hidden_size: 64}}}}}}}}
  fit:
    module: {{target: "tests.toy_training:Slope"}}
    data: {{target: "tests.toy_training:Line"}}
    trainer: {{max_epochs: 1}}
"""
    (tmp_path / "models.yaml").write_text(config)
    gc.collect()
    before = models()
    alive = {}

    def counting(name: str, *arguments: Any) -> None:
        run_stage(name, *arguments)
        alive[name] = [type(model).__name__ for model in models() if all(model is not one for one in before)]

    monkeypatch.setattr(train, "run_stage", counting)
    gc.disable()  # what is left is what a long pause between collections would leave
    try:
        arguments = [*micro.TINY_WORLD, "accelerator=cpu", f"output={tmp_path / 'runs'}"]
        assert micro.run(*arguments, config=tmp_path / "models.yaml") == 0
    finally:
        gc.enable()
    assert alive == {"world": [], "eval_untrained": [], "again": [], "fit": []}
