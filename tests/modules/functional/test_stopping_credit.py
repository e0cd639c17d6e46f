"""What process credit teaches about stopping: expected gradients of going on searching, over all groups of episodes."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import pytest

import train
from modules.functional.credit import Credit, dual_granularity_credit, potential_difference_credit, state_gain_credit
from tests.decisions import answer_or_search, expected_gradient

PAGE = Path(train.__file__).parent / "docs" / "credit.md"
OUTCOME = "outcome alone (`beta: 0`)"
ACROSS_KINDS: dict[str, Credit] = {
    f"`dual_granularity_credit`, `statistics: {name}`": partial(dual_granularity_credit, beta=0.9, statistics=name)
    for name in ("step", "token", "step_index")
}
WITHIN_KINDS: dict[str, Credit] = {
    "`dual_granularity_credit`, `statistics: kind`": partial(dual_granularity_credit, beta=0.9, statistics="kind"),
    "the same, `scale: false`": partial(dual_granularity_credit, beta=0.9, statistics="kind", scale=False),
    "`dual_granularity_credit`, `statistics: kind_index`": partial(
        dual_granularity_credit, beta=0.9, statistics="kind_index"
    ),
    "`potential_difference_credit`": partial(potential_difference_credit, beta=0.9),
    "`state_gain_credit`": partial(state_gain_credit, beta=0.9),
}
CREDITS = {OUTCOME: partial(dual_granularity_credit, beta=0.0), **ACROSS_KINDS, **WITHIN_KINDS}


@cache
def gradients(name: str) -> list[float]:
    """Of searching on: scores that know the kind alone, after one search and after two; the truth, likewise."""
    return [
        expected_gradient(answer_or_search(decides_after=after, knows_the_truth=truth), CREDITS[name], group_size=4)
        for truth in (False, True)
        for after in (1, 2)
    ]


def test_the_outcome_asks_for_the_search_that_is_needed_and_does_not_mind_one_more() -> None:
    needed, needless, *_ = gradients(OUTCOME)
    assert needed > 0.3
    assert needless == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", ACROSS_KINDS)
def test_comparing_kinds_teaches_to_search_on_where_answers_score_low(name: str) -> None:
    needed, needless, *_ = gradients(name)
    assert needed > 2 * gradients(OUTCOME)[0]
    assert needless > 0.1, "although all is known and nothing is gained"


@pytest.mark.parametrize("name", WITHIN_KINDS)
def test_comparing_within_kinds_teaches_nothing_where_scores_know_the_kind_alone(name: str) -> None:
    assert gradients(name)[:2] == pytest.approx(gradients(OUTCOME)[:2], abs=1e-6)


@pytest.mark.parametrize("name", [name for name in WITHIN_KINDS if "kind_index" not in name])
def test_true_scores_teach_to_search_while_it_is_needed_and_then_to_answer(name: str) -> None:
    *_, needed, needless = gradients(name)
    assert needed > gradients(OUTCOME)[2] + 0.1
    assert needless < -0.1


def test_the_page_s_table_is_what_comes_out() -> None:
    text = PAGE.read_text()
    for name in CREDITS:
        cells = " | ".join(f"{value:.4f}".replace("-0.0000", "0.0000") for value in gradients(name))
        assert f"| {name} | {cells} |" in text, f"| {name} | {cells} |"
