"""An arm differs from what it is based on in what its name says, and in nothing else."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from pipeline.fingerprints import stage_names
from tests.configs.arms import CONFIGS, Stages, changed, stages

CREDIT, REWARDS = "rl.module.credit", "callbacks.rollout.rewards"
STATISTICS, SCORER = f"{CREDIT}.statistics", f"rl.{REWARDS}.prm.reward.scorer"
HIPRAG = f"{REWARDS}.hiprag.reward"
# What each arm sets otherwise than the files that it is based on; `-name`: a stage of theirs that it does not fit.
ARMS: dict[str, set[str]] = {
    "ablations/abstain": {
        "world.data.absent",
        *(f"eval_{name}.data.may_abstain" for name in ("teacher", "sft", "rl_outcome")),
        *(f"rl_abstain.{REWARDS}.{name}" for name in ("answer_f1", "abstain")),
    },
    "ablations/beta": set(),
    "ablations/dapo": {f"rl_outcome.module.{key}" for key in ("credit", "resample_rounds", "zero_variance")},
    "ablations/dr_grpo": {"rl_outcome.module.credit", "rl_outcome.module.denominator"},
    "ablations/gdpo": {"rl_outcome.module.credit"},
    "ablations/gspo": {
        *(f"rl_outcome.module.{key}" for key in ("credit", "aggregate", "ratio", "clip_low", "clip_high")),
        "rl_outcome.data.updates",
    },
    "ablations/llds": {"rl_outcome.module.credit", "rl_outcome.module.likelihood_weight", "rl_outcome.data.updates"},
    "ablations/no_refinement": {"-rft", "rl.module.policy.model", "rl.module.reference.model"},
    "ablations/no_rl": {"-rl"},
    "ablations/outcome_only": {"-prm", "-rft", "-rl"},
    "ablations/overlap": {"rl_outcome.module.importance_cap", "rl_outcome.callbacks.rollout.overlap"},
    "ablations/prm_on_pairs": set(),
    "ablations/refine_all": {"refine.data.scorer"},
    "ablations/refine_logp": {"refine.data.scorer", "refine.data.quantile"},
    "ablations/refine_shuffled": {"refine.data.scorer"},
    "ablations/refine_truth": {"refine.data.scorer"},
    "ablations/reinforce_pp": {"rl_outcome.module.credit"},
    "ablations/return_to_go": {CREDIT, *(f"rl.{REWARDS}.{name}.weight" for name in ("prm", "step_format"))},
    "ablations/rloo": {"rl_outcome.module.credit"},
    "ablations/sft_only": {"-prm", "-rft", "-rl"},
    "ablations/token_statistics": {STATISTICS},
    "ablations/top_k": set(),
    "ablations/uniform_prior": {"search.data.prior"},
    "ablations/value_gap_judge": {"label.data.judge", "prm.module.pointwise"},
    "ablations/vllm": {"rl.callbacks.gap", "rl.callbacks.rollout.sampler"},
    "credit/all_kinds": {STATISTICS},
    "credit/eq7": {STATISTICS, f"{CREDIT}.scale"},
    "credit/kind_place_statistics": {STATISTICS},
    "credit/kind_scaled": {f"{CREDIT}.scale"},
    "credit/logp_reward": {SCORER},
    "credit/place_statistics": {STATISTICS},
    "credit/position_reward": {SCORER},
    "credit/potential_difference": {CREDIT},
    "credit/shuffled_reward": {SCORER},
    "credit/state_gain": {CREDIT},
    "credit/truth": {SCORER},
    "credit/truth_all_kinds": {STATISTICS},
    "reward_model/eq4": {
        "search.data.simulator.temperature",
        *(f"label.data.{key}" for key in ("min_visits", "descend_visits", "pairs_per_tree")),
        *(f"prm.module.{key}" for key in ("read_at", "features", "pointwise")),
        "prm.trainer.max_epochs",
    },
    "reward_model/every_node": {"label.data.use"},
    "reward_model/features_alone": {"prm.module.optimizer.lr"},
    "reward_model/from_rft": {"-rl", "prm_from_rft.module.policy.model"},
    "reward_model/greedy_rollouts": {"search.data.simulator.temperature"},
    "reward_model/hot_siblings": {f"search.data.{key}.temperature" for key in ("expander", "simulator.sampler")},
    "reward_model/nodes_and_rollouts": {"label.data.use"},
    "reward_model/noise": {"label.data.judge"},
    "reward_model/pairs": set(),
    "reward_model/pointwise": {"prm.module.ranking"},
    "reward_model/ranking_loss": {"prm.module.pointwise"},
    "reward_model/read_at_observation": {"prm.module.read_at"},
    "reward_model/rollouts_hard": {"label.data.judge", "label.data.most"},
    "reward_model/rollouts_soft": {"label.data.judge", "label.data.most", "prm.module.min_gap"},
    "reward_model/second_epoch": {
        "-rl",
        *(f"search_refined.data.{key}.policy.model" for key in ("expander", "simulator.sampler")),
    },
    "reward_model/steps": set(),
    "reward_model/without_features": {"prm.module.features"},
    "hiprag/hiprag_arms": {
        *(f"hiprag_lambda_{weight}_rl.{HIPRAG}.lambda_p" for weight in ("0", "0.2", "0.6")),
        *(f"hiprag_lambda_0_rl.{HIPRAG}.{key}" for key in ("over_search", "under_search", "alone")),
        f"hiprag_over_only_rl.{HIPRAG}.under_search",
        *(f"hiprag_under_only_rl.{HIPRAG}.{key}" for key in ("over_search", "alone")),
        f"hiprag_official_denominator_rl.{HIPRAG}.denominator",
    },
    "reasonrag/judged_values": {
        "reasonrag_judged_values_search.data.leaf_value",
        "reasonrag_judged_values_pairs.data.labels",
    },
    "reasonrag/prorag_pairs": {
        "reasonrag_prorag_pairs",
        *(f"reasonrag_prorag_pairs_dpo.module.{key}.model" for key in ("policy", "reference")),
    },
    "reasonrag/reference_free": {"reasonrag_reference_free_dpo.module.reference_free"},
    "reasonrag/sft_on_chosen": {"reasonrag_chosen", "reasonrag_sft_on_chosen"},
    "reasonrag/tree_backup": {"reasonrag_tree_backup_pairs.data.labels"},
    "search_r1/v03": {
        f"search_r1_v03_{arm}.{REWARDS}.{name}" for arm in ("rl", "ppo") for name in ("answer", "staged")
    },
    "sirag/adapters": {
        "sirag_both_sft.data.agents",
        "sirag_adapters_rl.module.lora",
        "sirag_adapters_rl.module.optimizer.lr",
    },
    "sirag/chat_judge": {f"sirag_chat_judge_rl.{REWARDS}.judge.reward.judge"},
    "sirag_arms": {
        *("sirag_rl.callbacks.budget", "sirag_rl.trainer.max_epochs"),
        *(f"sirag_without_judge_rl.module.credit.{weight}" for weight in ("alpha", "beta")),
        f"sirag_without_judge_rl.{REWARDS}.judge",
        "sirag_without_tree_rl.callbacks.rollout.sampling",
        *(f"sirag_without_tree_rl.data.{key}" for key in ("group_size", "micro_batch")),
    },
}
# Of a file for several values: the setting on the command line, another value, and all that it changes.
SWEEPS: dict[str, tuple[str, float, set[str]]] = {
    **{
        name: ("parts.credit.beta", 0.75, {f"{CREDIT}.beta"})
        for name in ("ablations/beta", "credit/truth", "credit/eq7", "credit/kind_scaled")
    },
    "ablations/top_k": (
        "parts.rl_environment.top_k",
        7,
        {f"{place}.environment.top_k" for place in ("rl.callbacks.curve", "rl.callbacks.rollout", "eval_rl.data")},
    ),
    "reward_model/noise": ("parts.noise", 0.15, {"label.data.judge.rate"}),
    "reward_model/steps": ("stages.label.data.most", 700, {"label.data.most"}),
}
FOLDERS = ("ablations", "credit", "reward_model", "hiprag", "reasonrag", "search_r1", "sirag")


@cache
def merged(*bases: Path) -> Stages:
    """The stages of files together."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "bases.yaml"
        path.write_text(yaml.safe_dump({"base": [*map(str, bases)], "experiment": "bases", "stages": {}}))
        return stages(path)


def based_on(arm: str) -> tuple[Stages, dict[str, str]]:
    """The stages of the files that an arm is based on, and of its own stages what each is like."""
    path = CONFIGS / f"{arm}.yaml"
    written: dict[str, Any] = yaml.safe_load(path.read_text())
    places = [next(at for at in (path.parent / base, CONFIGS / base) if at.exists()) for base in written["base"]]
    own = written.get("stages", {}).items()
    return merged(*(at.resolve() for at in places)), {name: one["like"] for name, one in own if one and "like" in one}


def differences(arm: Stages, base: Stages, likes: dict[str, str]) -> set[str]:
    """The keys that an arm changes; which of its own stages another one reads goes without saying."""
    found = {f"-{name}" for name in base.keys() - arm.keys() if base[name]["module"]} - {"-rl_outcome"}
    for name, stage in arm.items():
        like = base.get(name) or arm.get(likes.get(name, "")) or base.get(likes.get(name, ""))
        if like is None:
            found |= set() if name.startswith("eval_") else {name}
            continue
        own = arm.keys() - base.keys()
        found |= {key for key, value in changed(stage, like, name).items() if not own & {*stage_names(value)}}
    return found


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_changes_what_it_is_named_after_and_nothing_else(name: str) -> None:
    base, likes = based_on(name)
    assert differences(stages(f"{name}.yaml"), base, likes) == ARMS[name]


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_changes_one_number_and_names_its_experiment_after_it(name: str) -> None:
    key, value, expected = SWEEPS[name]
    first, other = (stages(f"{name}.yaml", *given) for given in ((), (f"{key}={value}",)))
    assert changed(other, first) == dict.fromkeys(expected, value)
    assert f"experiment: {Path(name).stem}_${{{key}}}" in (CONFIGS / f"{name}.yaml").read_text()
    assert f"{key}=$" in (CONFIGS / f"{name}.yaml").read_text(), "its head has the command of all values"


@pytest.mark.parametrize(
    ("arm", "key", "value"),
    [("siblings", "label.data.pairs_per_tree", 0), ("pairs_without_features", "prm.module.features", False)],
)
def test_an_arm_at_the_head_of_another_file_changes_one_setting(arm: str, key: str, value: object) -> None:
    name = "reward_model/pairs.yaml"
    command = rf"^#   python train.py --config configs/{name} (experiment={arm} .*)$"
    [given] = re.findall(command, (CONFIGS / name).read_text(), re.M)
    assert changed(stages(name, *shlex.split(given)), stages(name)) == {key: value}


def test_every_arm_is_looked_at() -> None:
    files = [path.relative_to(CONFIGS) for folder in FOLDERS for path in (CONFIGS / folder).glob("*.yaml")]
    systems = [path for path in files if path.stem == path.parent.name or "qwen" in path.stem]
    assert {path.with_suffix("").as_posix() for path in files if path not in systems} == ARMS.keys() - {"sirag_arms"}
