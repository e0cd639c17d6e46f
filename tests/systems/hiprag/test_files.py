"""HiPRAG's experiments: the paper's figures, and arms that differ in the reward alone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import train
from pipeline.loader import load
from pipeline.origins import leaves

FOLDER = Path(train.__file__).parent / "configs" / "hiprag"
REWARD = "callbacks.rollout.rewards.hiprag.reward"
PAPER = {
    "hiprag_ppo.module.optimizer.lr": 1e-6,
    "hiprag_ppo.module.critic_lr": 1e-5,
    "hiprag_ppo.module.value_clip": 0.5,
    "hiprag_ppo.module.credit.gamma": 1.0,
    "hiprag_ppo.module.credit.lam": 1.0,
    "hiprag_ppo.module.credit.kl_weight": 0.001,
    f"hiprag_ppo.{REWARD}.lambda_f": 0.2,
    f"hiprag_ppo.{REWARD}.lambda_p": 0.4,
    f"hiprag_ppo.{REWARD}.correct": "cover",
    "hiprag_ppo.callbacks.rollout.environment.protocol.search_turns": 4,
    "hiprag_ppo.callbacks.rollout.environment.top_k": 3,
    "hiprag_ppo.callbacks.rollout.environment.limits.turn_tokens": 500,
    "hiprag_ppo.callbacks.rollout.environment.limits.observation_tokens": 500,
    "hiprag_ppo.callbacks.rollout.environment.limits.total_tokens": 8192,
    "hiprag_rl.module.optimizer.lr": 5e-7,
    "hiprag_rl.module.kl_weight": 0.001,
    "hiprag_rl.module.credit.eps": 1e-6,
    "hiprag_rl.data.group_size": 5,
}
ARMS: dict[str, dict[str, Any]] = {
    "lambda_0": {"lambda_p": 0.0, "over_search": None, "under_search": None, "alone": None},
    "lambda_0.2": {"lambda_p": 0.2},
    "lambda_0.6": {"lambda_p": 0.6},
    "over_only": {"under_search": None},
    "under_only": {"over_search": None, "alone": None},
    "official_denominator": {"denominator": "searches"},
}


def stages(name: str, output: Path) -> dict[str, Any]:
    return {
        key: asdict(value)
        for key, value in load(FOLDER / f"{name}.yaml", [f"output={output}"]).experiment.stages.items()
    }


def test_the_paper_s_figures(tmp_path: Path) -> None:
    written = {".".join(map(str, key)): value for key, value in leaves(stages("hiprag_qwen25_3b", tmp_path))}
    assert {key: written.get(key) for key in PAPER} == PAPER


def test_every_file_of_the_folder_is_looked_at() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*ARMS, "hiprag", "hiprag_qwen25_3b"}


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_differs_from_the_system_in_its_reward_alone(name: str, tmp_path: Path) -> None:
    whole, arm = stages("hiprag", tmp_path), stages(name, tmp_path)
    own = arm.pop(f"hiprag_{name}_rl")
    assert set(arm) - set(whole) == {f"eval_hiprag_{name}_rl"}
    assert all(arm[key] == whole[key] for key in arm if key in whole), "one store for all"
    reward = whole["hiprag_rl"]["callbacks"]["rollout"]["rewards"]["hiprag"]["reward"]
    reward |= ARMS[name]
    assert own == whole["hiprag_rl"]


def test_the_system_s_stages_bear_its_name(tmp_path: Path) -> None:
    assert all("hiprag" in stage for stage in set(stages("hiprag", tmp_path)) - {"world", "drills"})
