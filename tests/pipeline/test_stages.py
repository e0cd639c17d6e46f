"""What a stage's pieces are given beside their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.launcher import Ranks
from pipeline.loader import load
from pipeline.plan import Plan
from pipeline.stages import run_stage

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
