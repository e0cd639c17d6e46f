"""Scores of Self-RAG by hand."""

from __future__ import annotations

import math

import pytest

from common.errors import ConfigError
from systems.self_rag.scores import Weights, relevance, retrieval, support, utility


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def test_expectations_are_over_the_group_alone() -> None:
    assert relevance([-0.2, -1.8]) == pytest.approx(0.832018, abs=1e-6)
    assert support(logs(0.6, 0.3, 0.1)) == pytest.approx(0.75)
    assert utility(logs(0.4, 0.3, 0.2, 0.05, 0.05)) == pytest.approx(0.475)
    assert utility([-900.0] * 5) == pytest.approx(0.0), "far below what exp can hold"
    for missing in ((), (-math.inf,) * 5):
        assert utility(missing) == 0


@pytest.mark.parametrize(
    ("weights", "score"),
    [({"sequence": False}, 1.819518), ({}, 2.638249), ({"utility": 1.0}, 2.875749)],
)
def test_a_score_adds_up_its_parts(weights: dict[str, float], score: float) -> None:
    parts = {"relevance": relevance([-0.2, -1.8]), "support": 0.75, "utility": 0.475}
    assert Weights(**weights).score([-0.1, -0.3, -0.2], **parts) == pytest.approx(score, abs=1e-6)  # type: ignore[arg-type]
    assert Weights(sequence=True).score([], relevance=0, support=0, utility=0) == 0


def test_the_gate_compares_probabilities_and_the_official_one_log_probs() -> None:
    assert retrieval(*logs(0.3, 0.5)) == pytest.approx(0.375)
    assert retrieval(*logs(0.9, 0.1), official=True) == pytest.approx(0.043755, abs=1e-6)
    assert retrieval(*logs(0.3, 0.7), official=True) == pytest.approx(0.771457, abs=1e-6)


def test_a_weight_must_not_be_negative() -> None:
    with pytest.raises(ConfigError, match="no weight may be negative"):
        Weights(support=-1)
