"""The small quickstart without its helpers: retriever, judge or rewards fail, and nothing of it is rewarded."""

from __future__ import annotations

import pytest
import torch

from tests import micro
from tests.micro import Quickstart, artifacts, metrics, scalars, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("without_reports")]
FLAKY = '{target: "tests.outages:Flaky", retriever: "${parts.retriever}", every: %d}'


def line(capsys) -> str:
    """The one line that a run ended with."""
    (found,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return found


def environment(retriever: str = '"${parts.retriever}"', limits: str = '"${parts.limits}"') -> str:
    """The quickstart's environment with another retriever or other limits."""
    parts = f'protocol: "${{parts.protocol}}", retriever: {retriever}, limits: {limits}'
    return f'{{target: "envs.retrieval:RetrievalEnvironment", {parts}}}'


def test_a_retriever_that_fails_now_and_then_is_counted_and_survived(quickstart: Quickstart) -> None:
    """Never rewarded: an episode that it failed has no score."""
    places = {"search.data": 2, "sample.data": 2, "rl.callbacks.rollout": 4}
    flaky = [f"stages.{place}.environment={environment(FLAKY % every)}" for place, every in places.items()]
    # A failed call fails no more than two episodes.
    sampling = '{target: "envs.rollout:independent_groups", pool: 2}'
    flaky += ["stages.sample.data.pool=2", f"stages.rl.callbacks.rollout.sampling={sampling}"]
    assert micro.chain(quickstart.output, *flaky, "experiment=flaky", "--stage", "rl") == 0
    made = artifacts(quickstart.output, "flaky")
    assert metrics(made["search"])["search/failures"] > 0
    assert metrics(made["sample"])["failed"] > 0
    assert metrics(made["sample"])["failed"] + metrics(made["sample"])["episodes"] == 14
    events = scalars(quickstart.output, "rl", "flaky")
    failed = [event.value for event in events.Scalars("stop/error")]
    assert max(failed) > 0
    assert [event.value for event in events.Scalars("unscored")] == failed


ABSENT = 'parts.judge={target: "tests.outages:Absent", judge: %s, every: %d}'
TRUTH = '{target: "modules.judges.world_oracle:WorldOracle", world: "${stage:world}"}'


def test_a_judge_that_fails_now_and_then_is_counted_and_survived(quickstart: Quickstart, capsys) -> None:
    assert micro.chain(quickstart.output, ABSENT % (TRUTH, 3), "experiment=absent", "--stage", "label") == 0
    whole = metrics(artifacts(quickstart.output)["label"])
    found = metrics(artifacts(quickstart.output, "absent")["label"])
    assert found["unlabelled"] == -(-whole["steps"] // 3)
    assert found["steps"] == whole["steps"] - found["unlabelled"]
    assert micro.chain(quickstart.output, ABSENT % (TRUTH, 1), "experiment=nobody", "--stage", "label") == 1
    assert f"the judge labelled none of {whole['steps']:.0f} steps" in line(capsys)


def test_a_judge_of_pairs_that_fails_now_and_then_is_counted_and_survived(quickstart: Quickstart, capsys) -> None:
    def labelled(name: str, *arguments: str) -> int:
        own = (*arguments, f"experiment={name}", "--stage", "label")
        return micro.chain(quickstart.output, *own, config=micro.CONFIGS / "base" / "pairs.yaml")

    assert labelled("pairs_whole") == 0
    assert labelled("pairs_absent", ABSENT % (TRUTH, 3)) == 0
    whole, found = (metrics(artifacts(quickstart.output, name)["label"]) for name in ("pairs_whole", "pairs_absent"))
    assert found["failures"] == -(-whole["groups"] // 3)
    assert 0 < found["pairs"] < whole["pairs"]
    assert labelled("pairs_nobody", ABSENT % (TRUTH, 1)) == 1
    groups = f"{whole['groups']:.0f}"
    said = f"no pairs: of {groups} groups of steps the judge found 0 alike and failed on {groups}"
    assert said in line(capsys)


def test_a_loss_that_is_no_number_ends_in_one_line(quickstart: Quickstart, capsys) -> None:
    optimizer = '{target: "modules.optimizer:AdamW", lr: 1e-3}'
    module = f'{{target: "tests.outages:NotANumber", policy: "${{parts.sft_policy}}", optimizer: {optimizer}}}'
    broken = [f"stages.rft.module={module}", "experiment=nan", "--stage", "rft"]
    assert micro.chain(quickstart.output, *broken) == 1
    assert "the loss is nan at optimiser step 1: lower the learning rate" in line(capsys)
    (begun,) = [path for path in (quickstart.output / "store").glob("rft-*") if not (path / "manifest.json").exists()]
    assert not (begun / "model").exists()


def test_rewards_that_are_all_equal_leave_the_weights_as_they_were(quickstart: Quickstart) -> None:
    rewards = "stages.rl_outcome.callbacks.rollout.rewards"
    even = f'{rewards}={{even: {{weight: 1.0, level: outcome, reward: {{target: "tests.outages:even"}}}}}}'
    others = [f"{rewards}.{name}=null" for name in ("answer_f1", "trajectory_format")]
    assert micro.chain(quickstart.output, even, *others, "experiment=even", "--stage", "rl_outcome") == 0
    made = artifacts(quickstart.output, "even")
    assert metrics(made["rl_outcome"])["frac_reward_zero_std"] == 1
    before, after = weights(made["sft"]), weights(made["rl_outcome"])
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_rollouts_that_are_all_malformed_are_counted_and_not_rewarded(quickstart: Quickstart) -> None:
    short = "{target: 'envs.types:Limits', turns: 2, turn_tokens: 2, total_tokens: 512}"
    limits = f"stages.rl_outcome.callbacks.rollout.environment={environment(limits=short)}"
    assert micro.chain(quickstart.output, limits, "experiment=short", "--stage", "rl_outcome") == 0
    found = metrics(artifacts(quickstart.output, "short")["rl_outcome"])
    assert (found["format/valid_rate"], found["stop/answered"], found["reward"]) == (0, 0, 0)


def test_a_refinement_that_keeps_nothing_ends_in_one_line(quickstart: Quickstart, capsys) -> None:
    strict = ["stages.refine.data.threshold=99", "experiment=strict", "--stage", "refine"]
    assert micro.chain(quickstart.output, *strict) == 1
    said = line(capsys)
    assert "refinement keeps nothing of 14 episodes" in said
    assert "no step kept" in said
