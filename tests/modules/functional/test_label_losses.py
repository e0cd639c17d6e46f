from __future__ import annotations

import math

import pytest
import torch

from modules.functional.label_losses import group_pairs, group_ranking_nll, label_loss, label_nll

LOG2 = math.log(2)


def test_a_label_is_the_share_of_right_ones() -> None:
    """With score 0 every label costs log 2; with log-odds of 3 to 1 the label .75 costs its entropy, .5623."""
    scores = torch.tensor([0.0, 0.0, math.log(3), math.log(3), math.log(3)])
    losses = label_nll(scores, torch.tensor([0.0, 0.3, 1.0, 0.0, 0.75]))
    assert losses.tolist() == pytest.approx([LOG2, LOG2, math.log(4 / 3), math.log(4), 0.562335])


def test_pairs_are_of_one_group_and_far_enough_apart() -> None:
    labels = torch.tensor([1.0, 0.0, 0.6, 1.0, 0.0])
    better, worse, weights = group_pairs(labels, torch.tensor([7, 7, 7, 9, 9]), min_gap=0.5)
    assert list(zip(better.tolist(), worse.tolist(), strict=True)) == [(0, 1), (2, 1), (3, 4)]
    assert weights.tolist() == [1.5, 1.5, 2.0], "three steps over two pairs, two over one"


def test_a_group_weighs_as_much_as_it_has_steps_whatever_its_pairs() -> None:
    """Group 0: three steps, two pairs, log 2 each: 3 · log 2. Group 1: two steps, a pair at distance 1: 2 · .3133."""
    scores = torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0])
    labels = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0])
    groups = torch.tensor([0, 0, 0, 1, 1])
    assert float(group_ranking_nll(scores, labels, groups)) == pytest.approx(3 * LOG2 + 2 * 0.313262, abs=1e-5)


def test_a_group_with_nothing_to_compare_costs_nothing_and_has_a_gradient_of_nothing() -> None:
    scores = torch.tensor([1.0, 2.0], requires_grad=True)
    loss = group_ranking_nll(scores, torch.tensor([1.0, 0.8]), torch.tensor([0, 0]))
    loss.backward()
    assert float(loss.detach()) == 0
    assert scores.grad is not None
    assert scores.grad.tolist() == [0, 0]


def test_both_losses_add_up_with_their_weights() -> None:
    scores, labels, groups = torch.zeros(2), torch.tensor([1.0, 0.0]), torch.tensor([0, 0])
    assert float(label_loss(scores, labels, groups, ranking=0.0, pointwise=1.0)) == pytest.approx(2 * LOG2)
    assert float(label_loss(scores, labels, groups, ranking=0.5, pointwise=0.0)) == pytest.approx(LOG2)
    assert float(label_loss(scores, labels, groups, ranking=0.5, pointwise=2.0)) == pytest.approx(5 * LOG2)
