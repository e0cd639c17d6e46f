from __future__ import annotations

import pytest

from common.errors import ConfigError
from datamodules.tree.node import Node
from datamodules.tree.values import AnswerScore, DiscountedMean, Leaf
from envs.types import Episode
from tests.tiny import question


def answered(*answers: str) -> Leaf:
    episodes = [Episode(question(answer="Ada"), (), answer=answer) for answer in answers]
    return Leaf(episodes[0], episodes)


def test_a_leaf_is_worth_the_mean_score_of_its_rollouts() -> None:
    leaves = [answered("Ada"), answered("Ada", "Bob", ""), answered("Ada Lovelace")]
    assert AnswerScore()(leaves) == pytest.approx([1.0, 1 / 3, 0.0])
    assert AnswerScore("f1")(leaves) == pytest.approx([1.0, 1 / 3, 2 / 3])


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
