from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from datamodules.tree.puct import Prior, backup, priors, puct_scores
from envs.types import Turn


def turn(*logps: float) -> Turn:
    return Turn("policy", (), tuple(range(len(logps))), logps, "stop", "u")


def test_scores_of_the_worked_example() -> None:
    """Children (prior, N, W): (.5, 4, 2.0), (.3, 1, 1.0), (.2, 0, 0), c 2.5."""
    scores = puct_scores(
        torch.tensor([0.5, 1.0, 0.0]), torch.tensor([0.5, 0.3, 0.2]), torch.tensor([4, 1, 0]), c_puct=2.5
    )
    assert scores.tolist() == pytest.approx([1.0590, 1.8385, 1.1180], abs=5e-5)
    assert int(scores.argmax()) == 1


def test_backup_of_the_worked_example() -> None:
    value, visits = backup(0.6, 2, 1.0, discount=0.99, steps_to_end=3)
    assert value == pytest.approx(0.723433, abs=5e-7)
    assert visits == 3


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.integers(0, 9)), min_size=1, max_size=9))
def test_the_value_is_the_mean_of_the_discounted_outcomes(outcomes: list[tuple[float, int]]) -> None:
    value, visits = 0.0, 0
    for outcome, steps in outcomes:
        value, visits = backup(value, visits, outcome, discount=0.9, steps_to_end=steps)
    assert visits == len(outcomes)
    assert value == pytest.approx(sum(outcome * 0.9**steps for outcome, steps in outcomes) / len(outcomes))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("logp_mean", [0.731059, 0.268941]),  # means -1 and -2: 1 / (1 + e^-1)
        ("logp_sum", [0.119203, 0.880797]),  # sums -4 and -2: 1 / (1 + e^2)
        ("uniform", [0.5, 0.5]),
        ("count", [0.75, 0.25]),
    ],
)
def test_priors(kind: Prior, expected: list[float]) -> None:
    turns = [turn(-0.5, -0.5, -2.0, -1.0), turn(-2.0)]
    assert priors(turns, [3, 1], kind) == pytest.approx(expected, abs=1e-6)


def test_very_improbable_siblings_still_have_priors() -> None:
    assert priors([turn(-2000.0), turn(-2000.0)], [1, 1], "logp_sum") == [0.5, 0.5]
