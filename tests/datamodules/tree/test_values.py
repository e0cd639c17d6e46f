from __future__ import annotations

import pytest
import torch

from common.errors import ConfigError
from datamodules.tree.node import Node
from datamodules.tree.values import SPRE, AnswerScore, DiscountedMean, Leaf, LeafValue, spre
from envs.types import Episode, Turn
from tests.tiny import question


def answered(*answers: str) -> Leaf:
    episodes = [Episode(question(answer="Ada"), (), answer=answer) for answer in answers]
    return Leaf(episodes[0], episodes)


def test_a_leaf_is_worth_the_mean_score_of_its_rollouts() -> None:
    leaves = [answered("Ada"), answered("Ada", "Bob", ""), answered("Ada Lovelace")]
    assert AnswerScore()(leaves) == pytest.approx([1.0, 1 / 3, 0.0])
    assert AnswerScore("f1")(leaves) == pytest.approx([1.0, 1 / 3, 2 / 3])


def test_spre_says_what_does_not_fit() -> None:
    with pytest.raises(
        ValueError, match=r"1 values and 2 steps, of shapes \[\] and \[2\]: give the steps of each rollout"
    ):
        spre(torch.tensor(1.0), torch.tensor([2, 3]))
    with pytest.raises(ValueError, match=r"2 values and 2 steps, of shapes \[1, 2\] and \[2\]"):
        spre(torch.ones(1, 2), torch.ones(2))
    with pytest.raises(ValueError, match="no rollouts: their mean value is not defined"):
        spre([], [])


@pytest.mark.parametrize("value", [AnswerScore(), SPRE()])
def test_a_leaf_without_rollouts_has_no_value(value: LeafValue) -> None:
    with pytest.raises(ValueError, match="a leaf without rollouts has no value"):
        value([answered("Ada"), Leaf(Episode(question(), ()), [])])


def test_spre_by_hand() -> None:
    assert float(spre([1.0, 0.5, 0.0], [2, 4, 7])) == pytest.approx(0.37935, abs=1e-6)
    assert float(spre([1.0, 0.5], [1, 3], alpha=0.5)) == pytest.approx((0.5 + 0.0625) / 2)


def test_a_leaf_s_shortest_path_estimate_counts_all_turns_of_its_rollouts() -> None:
    """Of two turns and right, of four and half right (F1 2/3), and without an answer."""
    leaf = answered("Ada", "Ada Lovelace", "")
    turn = Turn("policy", (), (1,), (-1.0,), "stop", "u")
    for episode, turns in zip(leaf.rollouts, (2, 4, 9), strict=True):
        episode.turns = [turn] * turns
    assert SPRE()([leaf]) == pytest.approx([(0.9**2 + 2 / 3 * 0.9**4) / 3])
    assert SPRE("exact", alpha=0.5)([leaf]) == pytest.approx([0.25 / 3])
    assert SPRE().rollouts == 4


def test_a_value_is_discounted_by_the_distance_to_the_end_of_the_rollout_or_of_the_path() -> None:
    """Three nodes, a rollout of four turns: distances 4, 3, 2; in the tree alone 2, 1, 0."""
    path = [Node(visits=1, value=0.5), Node(visits=0), Node(visits=3, value=1.0)]
    assert DiscountedMean(0.5)(path, 1.0, 4) == [(0.28125, 2), (0.125, 1), (0.8125, 4)]
    assert DiscountedMean(0.5, count_rollout=False)(path, 1.0, 4) == [(0.375, 2), (0.5, 1), (1.0, 4)]


def test_numbers_out_of_range_are_errors() -> None:
    with pytest.raises(ConfigError, match="rollouts is 0; it must be at least 1"):
        AnswerScore(rollouts=0)
    for discount in (0.0, 1.5):
        with pytest.raises(ConfigError, match=rf"discount is {discount}; it must be in \(0, 1\]"):
            DiscountedMean(discount)
    for settings in ({"rollouts": 0}, {"alpha": 0.0}, {"alpha": 1.1}):
        with pytest.raises(ConfigError, match=r"rollouts must be at least 1, alpha in \(0, 1\]"):
            SPRE(**settings)  # type: ignore[arg-type]
