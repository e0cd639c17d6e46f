from __future__ import annotations

import pytest
import torch

from modules.reward_model.features import FEATURES, FeatureWeights, step_features


def test_features_of_two_steps_by_hand() -> None:
    logps = torch.tensor([-1.0, -0.5, -3.0, -0.25])
    rows = step_features(logps, torch.tensor([0, 1, 0, 1]), torch.tensor([4, 5]))
    assert dict(zip(FEATURES, rows[0].tolist(), strict=True)) == {
        "logp_mean": -2.0, "logp_sum": -4.0, "logp_min": -3.0, "tokens": 2.0, "place": 4.0,
    }  # fmt: skip
    assert rows[1].tolist() == [-0.375, -0.75, -0.5, 2.0, 5.0]


def test_a_kind_has_weights_of_its_own_and_an_unknown_kind_their_mean() -> None:
    weights = FeatureWeights(["answer", "query"])
    with torch.no_grad():
        weights.weight_KF.copy_(torch.tensor([[1.0, 0, 0, 0, 0, 10], [0, 0, 0, 0, 2.0, -10]]))
    features = torch.tensor([[-3.0, 0, 0, 0, 7]]).expand(3, -1)
    assert weights(features, ["answer", "query", "other"]).tolist() == [7.0, 4.0, 5.5]


def test_the_fit_finds_what_each_kind_goes_by_whatever_the_sizes_of_features() -> None:
    """Answers are right where their least log-probability is high, queries where they come early."""
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(400, len(FEATURES), generator=generator) * torch.tensor([1e-2, 1.0, 1.0, 30.0, 10.0])
    kinds = ["answer", "query"] * 200
    right = torch.where(torch.arange(400) % 2 == 0, features[:, 2] > 0.5, features[:, 4] < 5.0)
    weights = FeatureWeights(["answer", "query"])
    with torch.no_grad():
        weights.weight_KF.copy_(weights.fitted(weights.design(features, kinds), right.float(), torch.ones(400)))
    assert ((weights(features, kinds) > 0) == right).float().mean() > 0.95


def test_the_fit_of_differences_finds_what_the_better_of_two_has_more_of() -> None:
    weights = FeatureWeights(["query"])
    gaps = torch.zeros(50, 6)
    gaps[:, 2] = 0.5
    fitted = weights.fitted(gaps, torch.ones(50), torch.ones(50))
    assert fitted[0, 2] > 1
    assert fitted[0].count_nonzero() == 1


def test_sides_that_weigh_nothing_tell_how_large_features_are() -> None:
    """Differences of a millionth between features of size one are noise, and get no weight to speak of."""
    weights = FeatureWeights(["query"])
    rows = torch.cat([torch.full((50, 6), 1e-6), torch.ones(100, 6)])
    targets = torch.cat([torch.ones(100), torch.zeros(50)])
    ignored = torch.cat([torch.ones(50), torch.zeros(100)])
    assert weights.fitted(rows, targets, ignored).abs().max() < 1e-3
    assert weights.fitted(rows[:50], targets[:50], ignored[:50]).abs().max() > 1e4


def test_the_weights_begin_at_nothing() -> None:
    weights = FeatureWeights(["query"])
    assert weights(torch.ones(1, len(FEATURES)), ["query"]).tolist() == [pytest.approx(0.0)]
