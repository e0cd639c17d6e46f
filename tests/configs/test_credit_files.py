"""The arms of process credit: they share all but one thing, and none of ours punishes answering for being an answer."""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import train
from modules.functional.credit import Credit
from pipeline.loader import load
from pipeline.schema import Stage
from tests.credits import credit_inputs_of

CONFIGS = Path(train.__file__).parent / "configs"
QUICKSTART = CONFIGS / "quickstart.yaml"
NAMES = sorted(path.stem for path in (CONFIGS / "credit").glob("*.yaml"))
# What compares steps of different kinds: ProRAG's own credit, and what stands beside it.
# Of each the advantage that an answer is given for being one.
ACROSS_KINDS = {"place_statistics": -0.036, "all_kinds": -0.0641, "truth_all_kinds": -0.0641}
ACROSS_KINDS |= {"eq7_0.3": -0.4955, "eq7_0.7": -1.1562, "eq7_0.9": -1.4865}
SWEEPS = {
    "ablations/beta": (0.0, 0.1, 0.3, 0.5, 0.7, 0.9),
    "credit/truth": (0.1, 0.3, 0.5, 0.7, 0.9),  # at 0 the truth has no weight: beta_0
    "credit/eq7": (0.3, 0.7, 0.9),
}

# Two right episodes of a question: one answers after a search, one after two. The scores know the kind of a step alone.
KINDS = (("query", "subanswer", "answer", "", ""), ("query", "subanswer", "query", "subanswer", "answer"))
SCORES = {"query": 0.84, "subanswer": 0.93, "answer": 0.60, "": 0.0}
EXAMPLE = credit_inputs_of(
    step_rewards_BS=torch.tensor([[SCORES[kind] for kind in row] for row in KINDS]),
    step_mask_BS=torch.tensor([[bool(kind) for kind in row] for row in KINDS]),
    outcome_B=torch.tensor([1.0, 1.0]),
    group_size=2,
    step_lengths_BS=torch.tensor([[20 * bool(kind) for kind in row] for row in KINDS]),
    step_kinds_BS=KINDS,
    step_states_BS=(("0", "a", "b", "", ""), ("0", "a", "b", "c", "d")),
)
ANSWERS = torch.tensor([[kind == "answer" for kind in row] for row in KINDS])


def stages_of(path: Path, output: Path) -> dict[str, Stage]:
    return load(path, [f"output={output}"]).experiment.stages


def reinforcement(path: Path, output: Path) -> Stage:
    """The stage of reinforcement of an arm's file."""
    return stages_of(path, output)["rl"]


def credit_of(module: dict[str, Any]) -> Credit:
    settings = dict(module["credit"])
    place, _, name = settings.pop("target").partition(":")
    return partial(getattr(importlib.import_module(place), name), **settings)


@pytest.mark.parametrize("path", [QUICKSTART, *(CONFIGS / "credit" / f"{name}.yaml" for name in NAMES)])
def test_answering_is_not_punished_for_being_an_answer(path: Path, tmp_path: Path) -> None:
    """Scores that know the kind alone say nothing of a step, so a credit that is fair moves nothing."""
    advantages_BS = credit_of(reinforcement(path, tmp_path).module)(EXAMPLE)
    if path.stem in ACROSS_KINDS:
        assert float(advantages_BS[ANSWERS].min()) == pytest.approx(ACROSS_KINDS[path.stem], abs=1e-4)
    else:
        assert not advantages_BS.any()


@pytest.mark.parametrize("family", SWEEPS)
def test_a_sweep_changes_a_weight_and_nothing_else(family: str, tmp_path: Path) -> None:
    stages = {beta: reinforcement(CONFIGS / f"{family}_{beta:g}.yaml", tmp_path) for beta in SWEEPS[family]}
    first = stages[SWEEPS[family][0]]
    for beta, stage in stages.items():
        assert (stage.data, stage.callbacks, stage.trainer) == (first.data, first.callbacks, first.trainer)
        assert stage.module == {**first.module, "credit": {**first.module["credit"], "beta": beta}}


def test_every_arm_may_sample_the_same_tokens(tmp_path: Path) -> None:
    """In reinforcement, whatever it rewards; groups that are thrown away and other lengths of episodes count too."""
    budgets: dict[str, int] = {}
    for path in (QUICKSTART, *(CONFIGS / "credit").glob("*.yaml"), *(CONFIGS / "ablations").glob("*.yaml")):
        for name, stage in stages_of(path, tmp_path).items():
            if "rollout" in stage.callbacks:
                budgets[f"{path.stem}: {name}"] = stage.callbacks["budget"]["max_tokens"]
    assert len(budgets) > 35
    assert set(budgets.values()) == {120_000}


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_before_reinforcement_is_the_quickstart_s(name: str, tmp_path: Path) -> None:
    shared, own = (stages_of(path, tmp_path) for path in (QUICKSTART, CONFIGS / "credit" / f"{name}.yaml"))
    for stage in ("world", "sft", "search", "label", "prm", "rft", "eval_rft"):
        assert own[stage] == shared[stage], stage


def test_a_bound_takes_the_reward_model_s_place_in_reinforcement_alone(tmp_path: Path) -> None:
    targets = {
        "truth": "modules.scorers.truth:Truth",
        "logp": "modules.scorers.log_prob:MeanLogProb",
        "position": "modules.scorers.position:Position",
        "shuffled": "modules.scorers.shuffled:Shuffled",
    }
    for bound, target in targets.items():
        name = "truth_0.3" if bound == "truth" else f"{bound}_reward"
        stages = stages_of(CONFIGS / "credit" / f"{name}.yaml", tmp_path)
        rewards = stages["rl"].callbacks["rollout"]["rewards"]
        assert rewards["prm"]["reward"]["scorer"]["target"] == target
        assert (stages["refine"].data or {})["scorer"]["target"] == "modules.reward_model.model:load_reward_model"
