"""When process reward pays: the arms differ in credit and rewards alone, and a small one is walked to its results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs.arms import CONFIGS, changed, stages
from tests.micro import TINY_WORLD, metrics, run

SPARSE = "when_it_pays/sparse.yaml"
ARMS = ("rl_mixed", "rl_kinds", "rl_to_go", "rl_progress")


def test_the_arms_differ_in_credit_and_rewards_alone() -> None:
    made = stages(SPARSE)
    differences = {arm: set(changed(made[arm], made["rl_outcome"])) for arm in ARMS}
    rewards, credit = "callbacks.rollout.rewards", "module.credit"
    assert {key for keys in differences.values() for key in keys} == {
        f"{credit}.beta",
        f"{credit}.scale",
        f"{credit}.scale_rewards",
        f"{credit}.statistics",
        credit,
        f"{rewards}.progress",
        f"{rewards}.truth",
    }
    assert made["rl_outcome"]["callbacks"]["budget"]["max_tokens"] == 300_000
    hops = {arm: made[arm]["data"]["questions"]["hops"] for arm in ("teach", "rl_outcome", *ARMS)}
    assert hops == {"teach": [1, 2]} | {arm: [3, 4] for arm in ("rl_outcome", *ARMS)}


@pytest.mark.slow
def test_a_small_arm_of_progress_is_walked_from_the_world_to_its_results(tmp_path: Path) -> None:
    arms = ("rl_outcome", "rl_to_go", "rl_progress")
    given = [
        *(one for one in TINY_WORLD if "splits" not in one and "hops" not in one),
        *("stages.world.data.hops=[1, 2]", "stages.world.data.splits={sft: 20, rl: 10, dev: 5, test: 5}"),
        *("devices=1", "parts.sft_hops=[1]", "parts.rl_hops=[2]", "parts.curve.every=1", f"output={tmp_path}"),
        'stages.sft.module.policy={target: "modules.policy:random_policy", tokenizer: "${parts.tokenizer}", '
        "hidden_size: 32, layers: 1, heads: 4, kv_heads: 2, feed_forward: 64}",
        *("stages.sft.trainer.max_steps=4", "stages.sft.data.batch_size=4"),
        *(f"stages.{arm}.data.questions_per_iteration=2" for arm in arms),
        *(f"stages.{arm}.data.micro_batch=4" for arm in arms),
        *(f"stages.{arm}.callbacks.budget.max_tokens=50" for arm in arms),
    ]
    assert run("--stage", "eval_rl_progress", *given, config=CONFIGS / SPARSE) == 0
    [fitted] = (tmp_path / "store").glob("rl_progress-*")
    assert metrics(fitted)["rewards/progress/unscored"] == 0
    assert {"frac_reward_zero_std/answer", "frac_reward_zero_std/format"} <= metrics(fitted).keys()
    [results] = (tmp_path / "store").glob("eval_rl_progress-*")
    assert "eval/world/test/em" in metrics(results)
