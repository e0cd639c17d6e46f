"""The arms of process credit: equal tokens, and none but those that compare kinds punishes answering."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import pytest
import torch

from modules.functional.credit import Credit
from tests.configs.arms import CONFIGS, stages
from tests.credits import credit_inputs_of

ARMS = [path.relative_to(CONFIGS).as_posix() for path in sorted((CONFIGS / "credit").glob("*.yaml"))]
ABLATIONS = [path.relative_to(CONFIGS).as_posix() for path in sorted((CONFIGS / "ablations").glob("*.yaml"))]
# What compares steps of different kinds: ProRAG's own credit, and what stands beside it.
# Of each, by beta, the advantage that an answer is given for being one.
ACROSS_KINDS = {
    **{("place_statistics", 0.3): -0.036, ("all_kinds", 0.3): -0.0641, ("truth_all_kinds", 0.3): -0.0641},
    **{("eq7", 0.3): -0.4955, ("eq7", 0.7): -1.1562, ("eq7", 0.9): -1.4865},
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


def credit_of(module: dict[str, Any], **given: Any) -> Credit:
    settings = module["credit"] | given
    place, _, name = settings.pop("target").partition(":")
    return partial(getattr(importlib.import_module(place), name), **settings)


@pytest.mark.parametrize("name", ["quickstart.yaml", *ARMS])
@pytest.mark.parametrize("beta", [0.3, 0.7, 0.9])
def test_answering_is_not_punished_for_being_an_answer(name: str, beta: float) -> None:
    """Scores that know the kind alone say nothing of a step, so a credit that is fair moves nothing."""
    advantages_BS = credit_of(stages(name)["rl"]["module"], beta=beta)(EXAMPLE)
    arm = name.rpartition("/")[2].removesuffix(".yaml")
    if any(arm == other for other, _ in ACROSS_KINDS):
        expected = ACROSS_KINDS.get((arm, beta))
        assert expected is None or float(advantages_BS[ANSWERS].min()) == pytest.approx(expected, abs=1e-4)
    else:
        assert not advantages_BS.any()


@pytest.mark.parametrize("name", ["quickstart.yaml", *ARMS, *ABLATIONS])
def test_every_arm_may_sample_the_same_tokens(name: str) -> None:
    """In reinforcement, whatever it rewards; groups that are thrown away and other lengths of episodes count too."""
    callbacks = [stage["callbacks"] for stage in stages(name).values()]
    assert {one["budget"]["max_tokens"] for one in callbacks if "rollout" in one} <= {120_000}
