"""The files of Search-R1 make the choices of its papers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import train
from pipeline.loader import load
from pipeline.origins import leaves

FOLDER = Path(train.__file__).parent / "configs" / "search_r1"
METHOD = {
    "search_r1_rl.data.group_size": 5,
    "search_r1_rl.module.target": "modules.grpo:GRPO",
    "search_r1_rl.module.credit.target": "modules.functional.credit:grpo_credit",
    "search_r1_rl.module.credit.eps": 1e-6,
    "search_r1_rl.module.kl_weight": 0.001,
    "search_r1_rl.module.aggregate": "token_mean",
    "search_r1_ppo.module.target": "modules.ppo:PPO",
    "search_r1_ppo.module.credit.target": "modules.functional.credit:gae_credit",
    "search_r1_ppo.module.credit.gamma": 1.0,
    "search_r1_ppo.module.credit.lam": 1.0,
    "search_r1_ppo.module.credit.kl_weight": 0.001,
    "search_r1_ppo.module.kl_weight": None,  # it is in the reward
    "search_r1_ppo.module.value_clip": 0.5,
    "search_r1_ppo.data.group_size": 1,
    "search_r1_rl.trainer.gradient_clip_val": 1.0,
    "search_r1_ppo.trainer.gradient_clip_val": 1.0,
    **{f"search_r1_{arm}.callbacks.rollout.rewards.answer.reward.target": "modules.rewards.answer:answer_exact"
       for arm in ("rl", "ppo")},
}  # fmt: skip
PAPER = METHOD | {
    "search_r1_ppo.module.optimizer.lr": 1e-6,
    "search_r1_ppo.module.optimizer.warmup_steps": 285,  # 0.285 of 500 iterations with two updates each
    "search_r1_ppo.module.critic_lr": 1e-5,
    "search_r1_rl.module.optimizer.lr": 1e-6,
    "search_r1_rl.module.clip_low": 0.2,
    "search_r1_rl.module.clip_high": 0.2,
    **{f"search_r1_{arm}.{key}": value
       for arm in ("rl", "ppo")
       for key, value in {
           "module.temperature": 1.0,
           "data.questions_per_iteration": 512,
           "data.updates": 2,
           "trainer.max_epochs": 500,
           "callbacks.rollout.environment.top_k": 3,
           "callbacks.rollout.environment.limits.turn_tokens": 500,
           "callbacks.rollout.environment.limits.observation_tokens": 500,
           "callbacks.rollout.environment.limits.total_tokens": 4096,
       }.items()},
}  # fmt: skip
STAGED = {
    f"search_r1_v03_{arm}.callbacks.rollout.rewards.staged.reward.{name}": value
    for arm in ("rl", "ppo")
    for name, value in {
        "target": "systems.search_r1.reward:staged_answer",
        "lambda_f": 0.2,
        "lambda_r": 0.0,
        "lambda_a": 0.1,
    }.items()
}


def settings(name: str, folder: Path) -> dict[str, Any]:
    stages = load(FOLDER / f"{name}.yaml", [f"output={folder}"]).experiment.stages
    return {".".join(map(str, key)): value for key, value in leaves({k: asdict(v) for k, v in stages.items()})}


@pytest.mark.parametrize(("name", "choices"), [("search_r1", METHOD), ("qwen25_3b", PAPER), ("v03", STAGED)])
def test_it_makes_the_choices_that_it_is_named_after(name: str, choices: dict[str, Any], tmp_path: Path) -> None:
    written = settings(name, tmp_path)
    assert {key: written.get(key) for key in choices} == choices


def test_the_critic_learns_ten_times_as_fast_as_the_policy(tmp_path: Path) -> None:
    for name in ("search_r1", "qwen25_3b"):
        ppo = settings(name, tmp_path)
        assert ppo["search_r1_ppo.module.critic_lr"] == pytest.approx(10 * ppo["search_r1_ppo.module.optimizer.lr"])


def test_an_arm_rewards_nothing_but_what_it_says(tmp_path: Path) -> None:
    rewards = {key for key in settings("v03", tmp_path) if key.startswith("search_r1_v03") and ".rewards." in key}
    assert {key.split(".rewards.")[1].split(".")[0] for key in rewards} == {"staged"}
    assert {key.split(".")[0] for key in rewards} == {"search_r1_v03_rl", "search_r1_v03_ppo"}


def test_warm_up_and_evaluation_are_shared_between_the_arms(tmp_path: Path) -> None:
    whole, arm = settings("search_r1", tmp_path), settings("v03", tmp_path)
    shared = {stage: [(key, value) for key, value in whole.items() if key.startswith(f"{stage}.")]
              for stage in ("search_r1_teach", "search_r1_sft", "eval_search_r1_sft")}  # fmt: skip
    for stage, pairs in shared.items():
        assert pairs
        assert pairs == [(key, value) for key, value in arm.items() if key.startswith(f"{stage}.")], stage
