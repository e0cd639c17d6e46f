"""What is logged of a rollout batch."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.protocols.prorag import ProRAG
from envs.types import Episode, Step, Turn
from evaluation.rollout_metrics import _search_truth, measure
from modules.rewards.terms import Scores
from tests.tiny import byte_tokenizer, question


def episode(answer: str, *valid: bool) -> Episode:
    turn = Turn("policy", (9,), (1,) * len(valid), (-1.0,) * len(valid), "stop", f"turn of {answer}")
    steps = tuple(Step("query", in_format, ((0, i, i + 1),)) for i, in_format in enumerate(valid))
    return Episode(question(), (1, 2), [turn], status="answered", answer=answer, steps=steps)


def measured(rewards: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a right episode and a wrong one, whose second step is out of format."""
    episodes = [episode(question().answers[0], True, True), episode("no such thing", True, False)]
    step_BS = sum((values for values in rewards.values() if values.dim() == 2), torch.zeros(2, 2))
    outcome_B = sum((values for values in rewards.values() if values.dim() == 1), torch.zeros(2))
    scores = Scores(step_BS, torch.ones(2, 2, dtype=torch.bool), outcome_B, rewards)
    protocol = ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type]
    return measure(episodes, scores, torch.zeros(2, 2), protocol, group_size=2)


STEPS = torch.tensor([[0.6, 0.4], [0.8, 0.0]])


@pytest.mark.parametrize("name", ["prm", "judge"])
def test_every_step_reward_is_measured_apart_for_right_and_wrong_episodes(name: str) -> None:
    """Steps in format alone: the reward of others is set by rule, and they stand mostly in wrong episodes."""
    values = measured({name: STEPS, "answer_f1": torch.tensor([1.0, 0.0])})
    means = {tag: float(values[f"rewards/{name}/{tag}"].mean()) for tag in ("mean", "right", "wrong")}
    assert means == pytest.approx({"mean": 0.45, "right": 0.5, "wrong": 0.8})
    assert "rewards/answer_f1/right" not in values
    assert not [tag for tag in values if tag.startswith("prm/")]


def test_the_credit_of_answers_is_shown_apart() -> None:
    episodes = [episode("x", True, True), episode("y", True)]
    episodes[0].steps = (episodes[0].steps[0], replace(episodes[0].steps[1], kind="answer"))
    mask_BS = torch.tensor([[True, True], [True, False]])
    scores = Scores(STEPS, mask_BS, torch.zeros(2), {"prm": STEPS})
    protocol = ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type]
    given = torch.tensor([[0.5, -0.25], [0.75, 0.0]])
    assert measure(episodes, scores, given, protocol, group_size=2)["adv/answers"].tolist() == [-0.25]


def test_a_step_that_episodes_share_counts_once_and_a_frozen_generator_s_not_at_all() -> None:
    """Two paths of a tree: the first step is in both, and a generator that is not trained ends them."""
    shared, own, frozen = (
        Turn("policy", (9,), (1,), (-1.0,), "stop", uid, trainable=uid != "frozen") for uid in ("a", "b", "frozen")
    )
    valid = Step("query", True, ((0, 0, 1),))
    last = Step("answer", True, ((1, 0, 1),))
    episodes = [
        Episode(question(), (1, 2), [shared, frozen], status="answered", answer="x", steps=(valid, last)),
        Episode(
            question(), (1, 2), [shared, own], status="answered", answer="x", steps=(valid, replace(last, valid=False))
        ),
    ]
    judge = torch.tensor([[0.8, torch.nan], [0.8, 0.2]])
    scores = Scores(judge, torch.ones(2, 2, dtype=torch.bool), torch.zeros(2), {"judge": judge})
    protocol = ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type]
    values = measure(episodes, scores, torch.ones(2, 2), protocol, group_size=1)
    assert values["format/valid_rate"].tolist() == [1.0, 0.0]
    assert values["rewards/judge/mean"].tolist() == pytest.approx([0.8, 0.2])
    assert values["rewards/judge/unscored"].tolist() == [False, False]
    assert len(values["adv/mean"]) == 2


def test_measures_of_a_level_without_reward_are_absent() -> None:
    outcome, steps = measured({"answer_f1": torch.tensor([1.0, 0.0])}), measured({"prm": STEPS})
    of_outcomes = {"reward", "reward_std", "frac_reward_zero_std"}
    of_steps = {"step_reward", "step_reward_std", "frac_reward_zero_std/process"}
    assert of_outcomes <= outcome.keys()
    assert of_steps <= steps.keys()
    assert not of_steps & outcome.keys()
    assert not of_outcomes & steps.keys()


def test_flat_groups_are_shown_of_each_outcome_reward_where_there_are_several() -> None:
    answers, formats = torch.tensor([0.0, 0.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 1.0, 1.0])
    scores = Scores(
        torch.zeros(4, 2),
        torch.ones(4, 2, dtype=torch.bool),
        answers + 0.2 * formats,
        {"answer": answers, "format": formats},
        {"answer": 1.0, "format": 0.2},
    )
    protocol, episodes = ProRAG(byte_tokenizer(), instruction=""), [episode("x", True, True)] * 4  # type: ignore[arg-type]
    values = measure(episodes, scores, torch.zeros(4, 2), protocol, group_size=2)
    flat = {tag: values[tag].tolist() for tag in values if tag.startswith("frac_reward_zero_std")}
    assert flat == {
        "frac_reward_zero_std": [0, 0],
        "frac_reward_zero_std/answer": [1, 0],
        "frac_reward_zero_std/format": [0, 1],
    }


def test_rates_of_searches_and_statements_are_over_steps_of_all_episodes_that_did_not_fail() -> None:
    class Oracle:
        def judge(self, episode: Episode) -> Any:
            told = {"a": ((True, None, False, False), (None, None)), "b": ((), (True,))}
            return SimpleNamespace(**dict(zip(("needless", "unfounded"), told[episode.answer], strict=True)))

    failed = episode("no verdict is asked for", True)
    failed.status = "error"
    values = _search_truth([episode("a", True), failed, episode("b", True)], Oracle())  # type: ignore[arg-type]
    assert {tag: value.tolist() for tag, value in values.items()} == {
        "search/needless_rate": [1.0, 0.0, 0.0],
        "search/unfounded_rate": [1.0],
    }
    nothing = _search_truth([], Oracle())  # type: ignore[arg-type]
    assert [len(value) for value in nothing.values()] == [0, 0], "the same tags on every rank"
