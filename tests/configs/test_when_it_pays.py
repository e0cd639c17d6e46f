"""When process reward pays: arms differ in rewards and credit alone, conditions in questions; a small one is walked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs.arms import CONFIGS, changed, stages
from tests.micro import TINY_WORLD, metrics, run

STUDY = "when_it_pays/t34.yaml"
REWARDS, CREDIT = "callbacks.rollout.rewards", "module.credit"
OF_TREES = {"callbacks.diagnostics.gradients", "callbacks.rollout.sampling", "data.group_size", "data.micro_batch"}
# What each arm sets otherwise than answers alone, apart from rewards and credit.
MORE = {
    "rl_groups_8": {"data.group_size", "data.questions_per_iteration"},
    "rl_groups_16": {"data.group_size", "data.questions_per_iteration"},
    "rl_resample": {"module.resample_rounds", "module.zero_variance"},
    "rl_leaf_groups": OF_TREES,
    "rl_node_values": OF_TREES,
}


def test_the_arms_differ_in_credit_and_rewards_alone() -> None:
    made = stages(STUDY)
    arms = [name for name in made if name.startswith("rl_") and name != "rl_outcome"]
    assert len(arms) == 33
    for arm in arms:
        keys = set(changed(made[arm], made["rl_outcome"]))
        others = {key for key in keys if not key.startswith((REWARDS, CREDIT))}
        assert others == MORE.get(arm, set()), arm
        assert keys, arm
        assert made[f"eval_{arm}"]["data"]["sampler"]["policy"]["model"] == f"${{stage:{arm}}}/model"
    assert made["rl_outcome"]["callbacks"]["budget"]["max_tokens"] == 300_000
    assert {made[arm]["data"]["group_size"] * made[arm]["data"]["questions_per_iteration"] for arm in arms} == {48, 12}


@pytest.mark.parametrize(
    ("name", "taught", "asked"),
    [("t34", [1, 2], [3, 4]), ("t4", [1, 2], [4]), ("v4", [1, 2, 3, 4], [4]), ("b36", [1, 2], [3, 4, 5, 6])],
)
def test_conditions_differ_in_their_questions_alone(name: str, taught: list[int], asked: list[int]) -> None:
    made = stages(f"when_it_pays/{name}.yaml")
    assert made["teach"]["data"]["questions"]["hops"] == taught
    for stage in ("sample", "rank", "rl_outcome", "rl_progress"):
        assert made[stage]["data"]["questions"]["hops"] == asked
    assert made["eval_sft"]["data"]["datasets"]["world"]["questions"]["hops"] == asked
    assert set(asked) <= set(made["world"]["data"]["hops"])
    same = stages("when_it_pays/t34.yaml")
    keys = {key for arm in made for key in changed(made[arm], same[arm])}
    last = {key.rpartition(".")[2] for key in keys}
    assert last <= {"hops", "questions", "top_k", "total_tokens", "turns"}, name


def test_the_refined_start_is_what_refinement_made_of_the_policy_whose_steps_the_reward_models_learn() -> None:
    made, same = stages("when_it_pays/refined.yaml"), stages(STUDY)
    arms = [name for name in made if name.startswith("rl_")]
    assert len(arms) == 34
    for arm in arms:
        keys = {key.rpartition(".")[2] for key in changed(made[arm], same[arm])}
        assert keys <= {"hops", "top_k", "turns", "model"}, arm
        assert made[arm]["module"]["policy"]["model"] == "${stage:rft}/model"
    for stage in ("sample", "refine_sample"):
        assert made[stage]["data"]["sampler"]["policy"]["model"] == "${stage:sft}/model"
    assert made["refine"]["data"]["scorer"]["model"] == "${stage:prm}/model"
    assert made["rft"]["module"]["policy"]["model"] == "${stage:sft}/model"
    assert "flaws" in made["teach"]["data"]["sampler"]


def test_noise_falls_on_rewards_of_training_alone() -> None:
    made = stages(STUDY)
    poor = changed(made["rl_progress_noise_20"], made["rl_progress"])
    assert set(poor) == {f"{REWARDS}.answer", f"{REWARDS}.poorer_key"}
    assert made["rl_progress_noise_20"]["callbacks"]["rollout"]["rewards"]["poorer_key"]["reward"]["wrong"] == 0.2
    turned = changed(made["rl_kinds_verdicts_10"], made["rl_kinds"])
    assert set(turned) == {f"{REWARDS}.truth", f"{REWARDS}.verdicts"}
    verdicts = made["rl_kinds_verdicts_10"]["callbacks"]["rollout"]["rewards"]["verdicts"]["reward"]
    assert verdicts["rate"] == 0.1
    assert verdicts["reward"] == made["rl_kinds"]["callbacks"]["rollout"]["rewards"]["truth"]["reward"]


@pytest.mark.slow
def test_a_small_arm_of_progress_is_walked_from_the_world_to_its_results(tmp_path: Path) -> None:
    arms = ("rl_outcome", "rl_to_go", "rl_learned_progress")
    given = [
        *(one for one in TINY_WORLD if "splits" not in one and "hops" not in one),
        *("stages.world.data.hops=[1, 2]", "stages.world.data.splits={sft: 20, search: 5, rl: 10, dev: 5, test: 5}"),
        *("devices=1", "parts.sft_hops=[1]", "parts.rl_hops=[2]", "parts.curve.every=1", f"output={tmp_path}"),
        'stages.sft.module.policy={target: "modules.policy:random_policy", tokenizer: "${parts.tokenizer}", '
        "hidden_size: 32, layers: 1, heads: 4, kv_heads: 2, feed_forward: 64}",
        *("stages.sft.trainer.max_steps=4", "stages.sft.data.batch_size=4"),
        *(
            "stages.label.data.path=${stage:teach}",
            "stages.progress_label.data.most=30",
            "stages.progress_prm.trainer.max_steps=2",
        ),
        *(f"stages.{arm}.data.questions_per_iteration=2" for arm in arms),
        *(f"stages.{arm}.data.micro_batch=4" for arm in arms),
        *(f"stages.{arm}.callbacks.budget.max_tokens=50" for arm in arms),
    ]
    assert run("--stage", "eval_rl_to_go", "eval_rl_learned_progress", *given, config=CONFIGS / STUDY) == 0
    [fitted] = (tmp_path / "store").glob("rl_learned_progress-*")
    assert metrics(fitted)["rewards/progress/unscored"] == 0
    assert 0 <= metrics(fitted)["rewards/progress/claims_paid"] <= 1
    assert {"frac_reward_zero_std/answer", "frac_reward_zero_std/format"} <= metrics(fitted).keys()
    [results] = (tmp_path / "store").glob("eval_rl_to_go-*")
    assert "eval/world/test/em" in metrics(results)
