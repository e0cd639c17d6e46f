"""Flat groups are replaced by groups of other questions: which, how often, what is counted, and what stays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from callbacks.rollout import RolloutCallback
from callbacks.scored_groups import ScoredGroups
from common.errors import ConfigError
from datamodules.question_data import QuestionData
from envs.interfaces import RewardContext
from envs.rollout import independent_groups
from envs.types import Episode
from modules.functional.credit import grpo_credit, reinforce_pp_credit
from modules.grpo import GRPO
from modules.optimizer import AdamW
from modules.rewards.terms import Scores, Term
from modules.samplers.in_process import InProcessSampler
from tests.toy_rl import Asked, environment, learn, letters, small_policy, some_letters

NAN = float("nan")


def scored(names: str, outcomes: list[float], steps: int) -> ScoredGroups:
    """Groups of two, each episode named by a letter, with as many steps each."""
    mask = torch.ones(len(names), steps, dtype=torch.bool)
    outcome = torch.tensor(outcomes)
    scores = Scores(mask.float(), mask, outcome, {"out": outcome, "step": mask.float()}, {})
    return ScoredGroups(list(names), scores)  # pyright: ignore[reportArgumentType]


def test_groups_at_some_places_are_replaced_and_their_episodes_kept_apart() -> None:
    groups = scored("ABCDXY", [0, 0, 5, 5, 0, 1], steps=2)
    fresh, later = scored("EFGH", [1, 1, 0, 1], steps=3), scored("IJ", [2, 3], steps=1)
    made = groups.with_fresh([0, 1], fresh).with_fresh([0], later)
    assert "".join(made.episodes) == "IJGHXY"  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert "".join(made.thrown_away) == "ABCDEF"  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert made.scores.outcome_B.tolist() == made.scores.breakdown["out"].tolist() == [2, 3, 0, 1, 0, 1]
    assert made.scores.step_mask_BS.sum(dim=1).tolist() == [1, 1, 3, 3, 2, 2]
    assert made.scores.breakdown["step"].shape == (6, 3)
    assert not made.scores.logged
    for one, values in ((groups, [1.0]), (fresh, [2.0, 3.0])):
        one.scores.logged["out/late"] = torch.tensor(values)
    kept = groups.with_fresh([0, 1], fresh).scores.logged
    assert {name: values.tolist() for name, values in kept.items()} == {"out/late": [1.0, 2.0, 3.0]}


SETTINGS: dict[str, Any] = {
    "rewards": {"some": Term(some_letters)},
    "questions": Asked(16),
    "iterations": 2,
    "lr": 1e-2,
    "zero_variance": "resample",
}


class Sampled:
    """The sampling of an iteration, and which questions it was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[str]]] = []
        self.tokens: list[int] = []

    def __call__(self, environment: Any, sampler: Any, questions: Any, *, iteration: int, **settings: Any) -> Any:
        self.calls.append((iteration, [question.id for question in questions]))
        episodes = independent_groups(environment, sampler, questions, iteration=iteration, **settings)
        self.tokens.append(sum(len(turn.action_ids) for episode in episodes for turn in episode.turns))
        return episodes


def test_other_questions_take_the_place_of_flat_ones(tmp_path: Path) -> None:
    sampled = Sampled()
    _, watch, metrics = learn(tmp_path, **SETTINGS, resample_rounds=3, rollout={"sampling": sampled})
    for iteration in (0, 1):
        asked = [ids for number, ids in sampled.calls if number == iteration]
        names = [name for ids in asked for name in ids]
        assert len(set(names)) == len(names), "no question twice in an iteration"
        assert all(len(later) <= len(before) for before, later in itertools.pairwise(asked))
        assert len(asked) > 1
    last = [(ids, tokens) for (number, ids), tokens in zip(sampled.calls, sampled.tokens, strict=True) if number == 1]
    assert metrics["groups/resampled"] == sum(len(ids) for ids, _ in last[1:])
    assert metrics["tokens/rollout"] == sum(tokens for _, tokens in last), "what was thrown away was sampled too"
    assert 0 < metrics["tokens/thrown_away"] < metrics["tokens/rollout"]
    assert metrics["groups/flat"] == 0
    assert len(watch.buffers[1]) == 16, "a whole batch that trains"


def test_what_is_still_flat_when_the_rounds_are_used_up_trains_nothing_and_is_counted(tmp_path: Path) -> None:
    constant = {"flat": Term(lambda episodes, context: torch.full((len(episodes),), 0.7))}
    made, watch, metrics = learn(tmp_path, **SETTINGS | {"rewards": constant}, resample_rounds=2)
    assert metrics["groups/resampled"] == 8
    assert metrics["groups/flat"] == 4
    assert metrics["loss"] == metrics["grad_norm"] == 0
    assert watch.buffers[0] == []
    assert all(value.isfinite().all() for value in made.model.state_dict().values())


def sometimes_unknown(episodes: Sequence[Episode], context: Any) -> Tensor:
    """Known for one of three questions alone, so whole groups are not scored."""
    known = torch.tensor([int(episode.question.id[1:]) % 3 == 0 for episode in episodes])
    return letters(episodes, context).masked_fill(~known, NAN)


def test_groups_that_could_not_be_scored_are_replaced_too(tmp_path: Path) -> None:
    rewards = {"rewards": {"some": Term(sometimes_unknown)}}
    made, _, metrics = learn(tmp_path, **SETTINGS | rewards, resample_rounds=3)
    assert metrics["groups/resampled"] > 0
    assert all(value.isfinite().all() for value in made.model.state_dict().values())


def test_a_seed_decides_what_is_sampled_again(tmp_path: Path) -> None:
    calls = [Sampled() for _ in range(2)]
    weights = [
        learn(tmp_path, **SETTINGS, resample_rounds=3, rollout={"sampling": one})[0].model.state_dict() for one in calls
    ]
    assert calls[0].calls == calls[1].calls
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_two_ranks_sample_what_one_does() -> None:
    """Each replaces its own flat groups and asks the other nothing."""

    def groups(rank: int, ranks: int) -> list[list[list[int]]]:
        policy, data = small_policy(), QuestionData(Asked(16), questions_per_iteration=4, group_size=4)
        data.trainer = SimpleNamespace(global_rank=rank, world_size=ranks)  # pyright: ignore
        data.setup("fit")
        module = GRPO(policy, AdamW(1e-3), credit=grpo_credit, zero_variance="resample", resample_rounds=2)
        sampler = InProcessSampler(policy, temperature=1.0)
        callback = RolloutCallback(environment(policy), sampler, rewards={"some": Term(some_letters)})
        context = RewardContext(callback.environment.protocol, sampler)
        made = callback._rollout.groups(module, data, 1, context)
        assert made.thrown_away
        ids = [[i for turn in episode.turns for i in turn.action_ids] for episode in made.episodes]
        return [ids[start : start + 4] for start in range(0, len(ids), 4)]

    first, second = groups(0, 2), groups(1, 2)
    assert [first[0], second[0], first[1], second[1]] == groups(0, 1)


def test_too_few_questions_and_credit_over_all_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="16 questions are too few for 4 rounds"):
        learn(tmp_path, **SETTINGS, resample_rounds=4)
    with pytest.raises(ConfigError, match="resample needs credit that compares only the episodes of a group"):
        learn(tmp_path, **SETTINGS, credit=reinforce_pp_credit)
