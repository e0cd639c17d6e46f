"""The arms of the reward model: each differs from the first in what its name says, and shares what comes before."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import train
from pipeline.loader import load
from pipeline.origins import leaves
from pipeline.plan import Plan

ARMS = Path(train.__file__).parent / "configs" / "reward_model"
SEARCHES = {"eq4", "greedy_rollouts", "hot_siblings", "unsure_nodes"}  # search otherwise than the others
# Of the other arms on single steps, what is set otherwise than in `steps_5000`; a component stands for its target.
CHANGES: dict[str, dict[str, Any]] = {
    "every_node": {"label.data.use": "tree"},
    "nodes_and_rollouts": {"label.data.use": "both"},
    "greedy_rollouts": {"search.data.simulator.temperature": 0.0},
    "pointwise": {"prm.module.ranking": 0.0},
    "ranking_loss": {"prm.module.pointwise": 0.0},
    "read_at_observation": {"prm.module.read_at": "observation"},
    "read_at_both": {"prm.module.read_at": "both"},
    "without_features": {"prm.module.features": False},
    "features_alone": {"prm.module.optimizer.lr": 0.0},
    "hot_siblings": {
        "search.data.expander.temperature": 1.3,
        "search.data.simulator.sampler.temperature": 1.3,
        "label.data.use": "tree",
    },
    **{f"steps_{most}": {"label.data.most": most} for most in (300, 1000, 3000, 10000)},
}


def settings(name: str, folder: Path) -> dict[str, Any]:
    """All settings of an arm's stages."""
    stages = load(ARMS / f"{name}.yaml", [f"output={folder}"]).experiment.stages
    return {".".join(map(str, key)): value for key, value in leaves({k: asdict(v) for k, v in stages.items()})}


def test_all_arms_share_world_policy_and_all_but_four_the_search(tmp_path: Path) -> None:
    made: dict[str, set[Path]] = {}
    for path in sorted(ARMS.glob("*.yaml")):
        plan = Plan.of(load(path, [f"output={tmp_path}"]))
        for stage in ("world", "teach", "sft", *(() if path.stem in SEARCHES else ("search",))):
            made.setdefault(stage, set()).add(plan.stages[stage].artifact.folder)
    assert {stage: len(folders) for stage, folders in made.items()} == dict.fromkeys(
        ("world", "teach", "sft", "search"), 1
    )


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_an_arm_changes_what_it_is_named_after_and_nothing_else(name: str, tmp_path: Path) -> None:
    first, arm = settings("steps_5000", tmp_path), settings(name, tmp_path)
    assert {key: arm[key] for key in arm if first.get(key, "absent") != arm[key]} == CHANGES[name]
    assert not first.keys() - arm.keys()


@pytest.mark.parametrize(("name", "rate"), [("noise_5", 0.05), ("noise_10", 0.1), ("noise_20", 0.2)])
def test_a_noisy_judge_is_the_same_judge_less_a_share(name: str, rate: float, tmp_path: Path) -> None:
    first, arm = settings("steps_5000", tmp_path), settings(name, tmp_path)
    assert arm["label.data.judge.rate"] == rate
    assert arm["label.data.judge.judge.target"] == first["label.data.judge.target"]
    assert {key for key in arm if not key.startswith("label.data.judge") and first.get(key) != arm[key]} == set()


def test_of_the_arms_with_rollouts_all_have_as_many_steps_as_the_one_they_are_read_beside(tmp_path: Path) -> None:
    arms = [settings(name, tmp_path) for name in ("steps_1000", "rollouts_soft", "rollouts_hard", "judge_and_rollouts")]
    assert [arm["label.data.most"] for arm in arms] == [1000] * 4
    assert [arms[1]["label.data.judge.estimate"], arms[2]["label.data.judge.estimate"]] == ["soft", "hard"]
