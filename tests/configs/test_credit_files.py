"""The arms of process credit: they share all but one thing, and none of ours punishes answering for being an answer."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import train
from modules.functional.credit import Credit, CreditInputs
from pipeline.loader import load
from pipeline.plan import Plan

FOLDER = Path(train.__file__).parent / "configs" / "credit"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
# What compares steps of different kinds, for comparison.
ACROSS_KINDS = {"step_statistics", "place_statistics", "all_kinds", "truth_all_kinds"}
ARMS = {"rl": 0.3} | {f"rl_{round(100 * beta)}": beta for beta in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)}

# Two right episodes of a question: one answers after a search, one after two. The scores know the kind of a step alone.
KINDS = (("query", "subanswer", "answer", "", ""), ("query", "subanswer", "query", "subanswer", "answer"))
SCORES = {"query": 0.84, "subanswer": 0.93, "answer": 0.60, "": 0.0}
EXAMPLE = CreditInputs(
    step_rewards_BS=torch.tensor([[SCORES[kind] for kind in row] for row in KINDS]),
    step_mask_BS=torch.tensor([[bool(kind) for kind in row] for row in KINDS]),
    outcome_B=torch.tensor([1.0, 1.0]),
    group_size=2,
    step_lengths_BS=torch.tensor([[20 * bool(kind) for kind in row] for row in KINDS]),
    step_kinds_BS=KINDS,
    step_states_BS=(("0", "a", "b", "", ""), ("0", "a", "b", "c", "d")),
)
ANSWERS = torch.tensor([[kind == "answer" for kind in row] for row in KINDS])


def trained(name: str, output: Path) -> dict[str, dict[str, Any]]:
    """The stages of reinforcement of an arm's file."""
    stages = load(FOLDER / f"{name}.yaml", [f"output={output}"]).experiment.stages
    return {stage: settings.module for stage, settings in stages.items() if stage in ARMS and settings.module}


def credit_of(module: dict[str, Any]) -> Credit:
    settings = dict(module["credit"])
    place, _, name = settings.pop("target").partition(":")
    return partial(getattr(importlib.import_module(place), name), **settings)


@pytest.mark.parametrize("name", NAMES)
def test_answering_is_not_punished_for_being_an_answer(name: str, tmp_path: Path) -> None:
    """Scores that know the kind alone say nothing of a step, so a credit that is fair moves nothing."""
    modules = trained(name, tmp_path)
    assert modules
    for module in modules.values():
        advantages_BS = credit_of(module)(EXAMPLE)
        if name in ACROSS_KINDS:
            assert advantages_BS[ANSWERS].min() < -0.05, "which is why it is not ours"
        else:
            assert not advantages_BS.any()


@pytest.mark.parametrize("name", ["credit_betas", "truth_betas"])
def test_a_sweep_has_every_weight_from_one_start_at_equal_tokens(name: str, tmp_path: Path) -> None:
    modules = trained(name, tmp_path)
    assert {stage: module["credit"]["beta"] for stage, module in modules.items()} == {
        stage: beta for stage, beta in ARMS.items() if stage != "rl"
    }
    stages = Plan.of(load(FOLDER / f"{name}.yaml", [f"output={tmp_path}"])).experiment.stages
    first, *others = (stages[stage] for stage in modules)
    for other in others:
        assert (other.data, other.callbacks, other.trainer) == (first.data, first.callbacks, first.trainer)
        assert {**(other.module or {}), "credit": None} == {**(first.module or {}), "credit": None}
    assert first.callbacks["budget"]["max_tokens"] == 120_000


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_before_reinforcement_is_shared(name: str, tmp_path: Path) -> None:
    plans = [Plan.of(load(FOLDER / f"{one}.yaml", [f"output={tmp_path}"])) for one in (name, "kind_statistics")]
    for stage in ("world", "sft", "search", "label", "prm", "rank", "rft", "eval_rft"):
        assert plans[0].experiment.stages[stage] == plans[1].experiment.stages[stage], stage


def test_a_bound_takes_the_reward_model_s_place_in_reinforcement_alone(tmp_path: Path) -> None:
    targets = {
        "truth": "modules.scorers.truth:Truth",
        "logp": "modules.scorers.log_prob:MeanLogProb",
        "position": "modules.scorers.position:Position",
        "shuffled": "modules.scorers.shuffled:Shuffled",
    }
    for bound, target in targets.items():
        stages = load(FOLDER / f"{bound}_reward.yaml", [f"output={tmp_path}"]).experiment.stages
        rewards = stages["rl"].callbacks["rollout"]["rewards"]
        assert rewards["prm"]["reward"]["scorer"]["target"] == target
        assert (stages["refine"].data or {})["scorer"]["target"] == "modules.reward_model:load_reward_model"
