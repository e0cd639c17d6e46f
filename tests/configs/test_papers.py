"""Files named after a paper or a released code make its choices, as published."""

from __future__ import annotations

from typing import Any

import pytest

from tests.configs.arms import settings, stages

PRORAG_PAPER = {
    "sft.module.control_weight": 3.0,
    "sft.module.tag_weights": None,
    "search.data.prior": "logp_mean",
    "search.data.selection.c_puct": 2.5,
    "search.data.width.children": 5,
    "search.data.depth": 10,
    "search.data.backup.discount": 0.99,
    "search.data.backup.count_rollout": True,
    "search.data.leaf_value.score": "exact",
    "label.data.pairs_per_tree": 0,
    "prm.module.read_at": "observation",
    "prm.module.features": False,
    "prm.module.pointwise": 0.0,
    "refine.data.threshold": 0.0,
    "refine.data.quantile": None,
    "rft.module.control_weight": 1.0,
    "rl.module.clip_low": 0.2,
    "rl.module.clip_high": 0.2,
    "rl.module.aggregate": "group_sum",
    "rl.module.temperature": 1.0,
    "rl.module.credit.statistics": "step",
    "rl.module.credit.scale": True,
    "rl.module.credit.beta": 0.3,
}
PRORAG_OFFICIAL = {
    "search.data.prior": "uniform",
    "search.data.backup.count_rollout": False,
    "search.data.leaf_value.score": "f1",
    "label.data.pairs_per_tree": 0,
    "prm.module.features": False,
    "sample.data.samples": 1,
    "sample.data.sampler.temperature": 0.8,
    "refine.data.threshold": -1e-9,
    "rl.module.aggregate": "token_mean",
    "rl.module.denominator": "all",
    "rl.module.credit.statistics": "token",
    "rl.module.credit.beta": 0.3,
    "rl.callbacks.rollout.rewards.answer_f1.reward.scale": 2.0,
    "rl.callbacks.rollout.rewards.answer_f1.reward.zero_below": 0.2,
    "rl.callbacks.rollout.rewards.step_format.reward.invalid": -2.0,
    "rl.callbacks.rollout.rewards.trajectory_format.reward.invalid": -1.0,
}
SEARCH_R1 = {
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
SEARCH_R1_PAPER = SEARCH_R1 | {
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
HIPRAG_REWARD = "callbacks.rollout.rewards.hiprag.reward"
HIPRAG_PAPER = {
    "hiprag_ppo.module.optimizer.lr": 1e-6,
    "hiprag_ppo.module.critic_lr": 1e-5,
    "hiprag_ppo.module.value_clip": 0.5,
    "hiprag_ppo.module.credit.gamma": 1.0,
    "hiprag_ppo.module.credit.lam": 1.0,
    "hiprag_ppo.module.credit.kl_weight": 0.001,
    f"hiprag_ppo.{HIPRAG_REWARD}.lambda_f": 0.2,
    f"hiprag_ppo.{HIPRAG_REWARD}.lambda_p": 0.4,
    f"hiprag_ppo.{HIPRAG_REWARD}.correct": "cover",
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
REASONRAG_ENVIRONMENT = "eval_reasonrag_base.data.environment"
REASONRAG_PAPER = {
    f"{REASONRAG_ENVIRONMENT}.protocol.target": "systems.reasonrag.protocol:ReasonRAG",
    f"{REASONRAG_ENVIRONMENT}.protocol.iterations": 8,
    f"{REASONRAG_ENVIRONMENT}.top_k": 3,
    f"{REASONRAG_ENVIRONMENT}.limits.turn_tokens": 256,
    "eval_reasonrag_base.data.sampler.policy.model": "Qwen/Qwen2.5-7B-Instruct",
    "eval_reasonrag_base.data.sampler.temperature": None,  # greedy
    "reasonrag_search.data.questions.limit": 4603,
    "reasonrag_search.data.simulations": 64,
    "reasonrag_search.data.depth": 7,
    "reasonrag_search.data.environment.protocol.iterations": 7,
    "reasonrag_search.data.selection.exploration": 1.414,
    "reasonrag_search.data.width.children": 2,
    "reasonrag_search.data.leaf_value.rollouts": 4,
    "reasonrag_search.data.leaf_value.alpha": 0.9,
    "reasonrag_search.data.backup.discount": 1.0,
    "reasonrag_pairs.data.min_gap": 0.01,
    "reasonrag_pairs.data.labels.target": "datamodules.tree.labels:rollouts",
    "reasonrag_dpo.module.beta": 0.3,
    "reasonrag_dpo.module.optimizer.lr": 1e-6,
    "reasonrag_dpo.data.max_tokens": 10000,
    "reasonrag_dpo.data.validation": 0.1,
    "reasonrag_dpo.trainer.max_epochs": 1,
    "reasonrag_outcome_rl.data.questions.limit": 10000,
    "reasonrag_outcome_rl_half.data.questions.limit": 5000,
    **{f"reasonrag_outcome_rl.data.questions.weights.{name}": count
       for name, count in {"popqa": 704, "hotpotqa": 2843, "2wikimultihopqa": 1056}.items()},
}  # fmt: skip
SIRAG_PAPER = {
    "sirag_rl.module.clip_low": 0.2,
    "sirag_rl.module.clip_high": 0.2,
    **{f"sirag_rl.module.credit.{name}": value
       for name, value in {"alpha": 0.5, "beta": 0.5, "gamma": 1.0, "lam": 0.95}.items()},
    **{f"sirag_rl.callbacks.rollout.sampling.{name}": value
       for name, value in {"samples": 2, "depth": 2, "leaves": 8}.items()},
    "sirag_rl.callbacks.rollout.environment.protocol.retrievals": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("prorag/paper", PRORAG_PAPER),
        ("prorag/official", PRORAG_OFFICIAL),
        ("search_r1/search_r1", SEARCH_R1),
        ("search_r1/qwen25_3b", SEARCH_R1_PAPER),
        ("search_r1/v03", STAGED),
        ("hiprag/hiprag_qwen25_3b", HIPRAG_PAPER),
        ("reasonrag/reasonrag_qwen25_7b", REASONRAG_PAPER),
        ("sirag/sirag", SIRAG_PAPER),
    ],
)
def test_it_makes_the_choices_that_it_is_named_after(name: str, choices: dict[str, Any]) -> None:
    written = settings(f"{name}.yaml")
    assert {key: written.get(key) for key in choices} == choices


def test_popqa_s_questions_are_for_training_or_for_the_test() -> None:
    paper = stages("reasonrag/reasonrag_qwen25_7b.yaml")
    trained = paper["reasonrag_outcome_rl"]["data"]["questions"]["sources"]["popqa"]["part"]
    tested = paper["eval_reasonrag_base"]["data"]["datasets"]["popqa"]["questions"]["part"]
    assert (tested, trained) == ([0.0, 0.7], [0.7, 1.0])


@pytest.mark.parametrize("name", ["reasonrag", "reasonrag_qwen25_7b"])
def test_half_of_the_questions_is_half_of_the_training(name: str) -> None:
    both = stages(f"reasonrag/{name}.yaml")
    whole, half = (both[f"reasonrag_outcome_rl{end}"]["trainer"]["max_epochs"] for end in ("", "_half"))
    assert whole == 2 * half


@pytest.mark.parametrize("name", ["search_r1/search_r1", "search_r1/qwen25_3b"])
def test_the_critic_learns_ten_times_as_fast_as_the_policy(name: str) -> None:
    module = stages(f"{name}.yaml")["search_r1_ppo"]["module"]
    assert module["critic_lr"] == pytest.approx(10 * module["optimizer"]["lr"])


@pytest.mark.parametrize("name", ["search_r1", "hiprag", "reasonrag", "sirag"])
def test_a_system_s_stages_bear_its_name(name: str) -> None:
    """So that all can be put into one experiment."""
    own = stages(f"{name}/{name}.yaml").keys() - {"world", "drills", "eval_teacher"}
    assert all(name in stage for stage in own)


@pytest.mark.parametrize("name", ["sirag", "sirag_qwen25_0.5b"])
def test_each_of_sirag_s_agents_learns_its_own_turns_and_speaks_with_its_own_weights(name: str) -> None:
    written = stages(f"sirag/{name}.yaml")
    for agent in ("decision_maker", "knowledge_selector"):
        warm_up, speaks = written[f"sirag_{agent}_sft"], written["eval_sirag_sft"]["data"]["sampler"]["samplers"][agent]
        assert (warm_up["data"]["agents"], warm_up["data"]["path"]) == ([agent], "${stage:sirag_teach}")
        assert speaks["policy"]["model"] == f"${{stage:sirag_{agent}_sft}}/model"


def test_sirag_s_generator_answers_by_rule_and_the_trained_one_learns_from_flawless_episodes() -> None:
    written = stages("sirag/sirag.yaml")
    every = {name: one["data"].get("sampler", {}).get("samplers") for name, one in written.items()}
    samplers = {name: agents for name, agents in every.items() if agents}
    by_rule = {name for name, agents in samplers.items() if agents["generator"]["target"].endswith(":RuleReader")}
    assert {"sirag_teach", "sirag_gold", "eval_sirag_teacher", "eval_sirag_sft"} <= by_rule
    generator = written["sirag_generator"]["data"]
    assert (generator["agents"], generator["path"]) == (["generator"], "${stage:sirag_gold}")
    flawed = {name for name, agents in samplers.items() if any("flaws" in agent for agent in agents.values())}
    assert flawed == {"sirag_teach"}


RECIPES = ("prorag/qwen3_8b.yaml", "prorag/smollm2_135m.yaml")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_for_a_real_model_learns_and_credits_steps_as_the_quickstart_does(name: str) -> None:
    """What people copy is what was found best, not the paper's literal form."""
    ours, first = stages(name), stages("quickstart.yaml")
    for stage, part, keys in (
        ("search", "data", ("keep_rollouts",)),
        ("label", "data", ("target", "path", "use")),
        ("prm", "module", ("target", "read_at", "features", "pointwise", "ranking", "min_gap")),
        ("prm", "data", ("target", "path")),
        ("rl", "module", ("credit",)),
    ):
        assert [ours[stage][part].get(key) for key in keys] == [first[stage][part].get(key) for key in keys], stage
    for each in (ours, first):  # of greedy rollouts few steps are wrong
        assert each["search"]["data"]["simulator"]["temperature"] == each["rl"]["module"]["temperature"]
