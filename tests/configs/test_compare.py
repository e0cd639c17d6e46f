"""The comparison is the sum of its systems' files: their stages are the same artifacts, but for the budgets."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

import train
from pipeline.loader import load
from pipeline.plan import Plan

CONFIGS = Path(train.__file__).parent / "configs"
SYSTEMS = yaml.safe_load((CONFIGS / "compare.yaml").read_text())["base"]


@cache
def plan(name: str) -> Plan:
    return Plan.of(load(CONFIGS / name, ["output=none"]))


def below(stages: set[str], whole: Plan) -> set[str]:
    """These stages and all that depend on them."""
    return {name for name in whole.stages if name in stages or below_one(name, stages, whole)}


def below_one(name: str, stages: set[str], whole: Plan) -> bool:
    return any(need in stages or below_one(need, stages, whole) for need in whole.stages[name].needs)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_s_stages_are_those_of_its_own_file_but_for_the_budget(name: str) -> None:
    own, whole = plan(name), plan("compare.yaml")
    budgets = ({name: each.stage.callbacks.get("budget") for name, each in one.stages.items()} for one in (own, whole))
    alone, together = budgets
    budgeted = {stage for stage in own.stages if stage in together and alone[stage] != together[stage]}
    budgeted |= {"reasonrag_search"}  # its trees sample, and no callback ends them
    differ = below(budgeted, whole)
    assert set(own.stages) - {"eval_teacher"} <= set(whole.stages), "all but the shared teacher, which some leave out"
    for stage, planned in own.stages.items():
        if stage == "eval_teacher":
            continue
        same = planned.fingerprint == whole.stages[stage].fingerprint
        assert same == (stage not in differ), stage


def test_every_trained_system_has_the_tokens_of_prorag_and_is_evaluated() -> None:
    whole = plan("compare.yaml")
    learnt = {name for name, planned in whole.stages.items() if "rollout" in planned.stage.callbacks}
    assert {f"eval_{name}" for name in learnt} <= set(whole.stages)
    budgets = {name: whole.stages[name].stage.callbacks.get("budget") for name in learnt}
    tokens = {name: budget and budget["max_tokens"] for name, budget in budgets.items()}
    assert {name: count for name, count in tokens.items() if count != 578_000} == {
        "prorag_rl": 120_000,
        "outcome_rl_share": 118_000,
        "reasonrag_outcome_rl_half": 289_000,
    }


def test_trees_of_preferences_sample_what_other_systems_do() -> None:
    text = yaml.safe_load((CONFIGS / "compare.yaml").read_text())
    budget = text["parts"]["budget"]["max_tokens"]
    assert 0.9 * budget < text["stages"]["reasonrag_search"]["data"]["max_tokens"] < budget, "whole groups of trees"
    assert text["parts"]["half_budget"]["max_tokens"] == budget / 2


def test_the_arms_of_hiprag_have_its_budget_and_share_all_else() -> None:
    whole, arms = plan("compare.yaml"), plan("compare_arms.yaml")
    assert all(arms.stages[name].fingerprint == planned.fingerprint for name, planned in whole.stages.items())
    own = {name for name in set(arms.stages) - set(whole.stages) if not name.startswith("eval_")}
    assert len(own) == 6
    budget = whole.stages["hiprag_rl"].stage.callbacks["budget"]
    assert all(arms.stages[name].stage.callbacks["budget"] == budget for name in own)
