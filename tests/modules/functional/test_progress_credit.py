"""Progress credit by hand, and on a question of two hops beside other forms of credit: what each event is worth."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

import train
from modules.functional.credit import (
    Credit,
    dual_granularity_credit,
    grpo_credit,
    potential_difference_credit,
    progress_credit,
    return_to_go_credit,
)
from modules.functional.credit_inputs import CreditInputs
from modules.functional.progress_credit import kept_if_answered, progress_advantages
from tests.credits import credit_inputs_of
from tests.decisions import chain, costly_search, event, expected_advantages, expected_gradient, right_twice, stop_or_go

PAGE = Path(train.__file__).parent / "docs" / "credit.md"


def advantages(*episodes: list[float], group_size: int = 4, **settings: float) -> list[list[float]]:
    """Of episodes by the rewards of their steps, the outcome in the last; rounded."""
    rewards_BS = torch.nn.utils.rnn.pad_sequence([torch.tensor(one) for one in episodes], batch_first=True)
    mask_BS = torch.arange(rewards_BS.shape[1]) < torch.tensor([len(one) for one in episodes])[:, None]
    given = progress_advantages(rewards_BS, mask_BS, group_size=group_size, **settings).tolist()
    return [[round(value, 4) + 0.0 for value in row[: len(one)]] for row, one in zip(given, episodes, strict=True)]


WHOLE, HALF, NONE = [0.5, 0.5, 1.0], [0.5, 0.0], [0.0]  # two hops and right; one and an early answer; an early answer


def test_an_early_answer_gives_up_what_the_others_still_get() -> None:
    # From the start the others get 2, 0.5 and 0 in some order; from one hop on WHOLE gets 1.5 and HALF nothing.
    assert advantages(WHOLE, HALF, NONE, NONE, prior=0) == [
        [2 - 0.1667, 1.5, 1.0],
        [round(0.5 - 2 / 3, 4), -1.5],
        [-0.8333],
        [-0.8333],
    ]


def test_where_all_of_a_question_stop_early_the_iteration_says_that_more_can_be_had() -> None:
    early, mixed = [NONE] * 4, [WHOLE, WHOLE, HALF, NONE]
    assert advantages(*early, *mixed, prior=0)[:4] == [[0.0]] * 4
    # All others from the start: (3 · 0 + 2 · 4.5 / 7) / (3 + 2).
    assert advantages(*early, *mixed)[:4] == [[round(-2 * 4.5 / 7 / 5, 4)]] * 4 == [[-0.2571]] * 4
    assert advantages(*early) == [[0.0]] * 4, "nobody got more: nothing is learnt, nothing is unlearnt"


def test_where_all_answers_are_wrong_hops_are_still_worth_settling() -> None:
    wrong = [0.5, 0.5, 0.0]
    assert advantages(wrong, HALF, HALF, NONE, prior=0) == [
        [round(1 - 1 / 3, 4), 0.5, 0.0],
        [0.0, -0.25],
        [0.0, -0.25],
        [-0.6667],
    ]


def test_a_detour_changes_nothing_and_a_hop_is_paid_once() -> None:
    """The same progress is the same state after any number of steps, so lengths may differ."""
    straight, detour = WHOLE, [0.0, 0.5, 0.0, 0.0, 0.5, 1.0]
    assert advantages(straight, detour, straight, detour) == [[0.0] * 3, [0.0] * 6] * 2
    early = [0.0, 0.0, 0.5, 0.0]
    assert advantages(straight, early, group_size=2, prior=0) == [[1.5, 1.5, 1.0], [-1.5, -1.5, -1.5, -1.5]]


def test_a_price_does_not_blur_the_progress_and_the_unknown_is_left_out() -> None:
    paid = advantages([-0.1, 0.5, 0.0], [-0.1, -0.1, 0.5, 1.0], group_size=2, prior=0)
    assert paid == [[-0.9, -0.8, -1.0], [0.9, 1.0, 1.1, 1.0]]
    nan = float("nan")
    assert advantages(WHOLE, [0.5, nan], NONE, NONE, prior=0) == [[2.0, 1.5, 1.0], [0.0, 0.0], [-1.0], [-1.0]]


def test_a_discount_blames_detours_for_what_they_put_off() -> None:
    straight, detour = WHOLE, [0.0, 0.5, 0.5, 1.0]
    assert advantages(straight, detour, group_size=2, prior=0, gamma=0.5) == [[0.5, 0.0, 0.0], [-0.5, 0.0, 0.0, 0.0]]


def test_an_episode_without_an_answer_keeps_no_progress() -> None:
    rewards_BS = torch.tensor([[0.5, 0.5, 0.0], [0.5, -0.1, 0.0], [0.5, 0.0, 0.0]])
    mask_BS = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])
    kept_BS = kept_if_answered(rewards_BS, mask_BS, torch.tensor([True, False, False]))
    assert kept_BS.tolist() == [[0.5, 0.5, 0.0], [0.5, pytest.approx(-0.6), 0.0], [0.0, 0.0, 0.0]]


def test_going_on_until_the_turns_are_spent_is_worth_less_than_a_wrong_answer_after_as_many_hops() -> None:
    """Two episodes settle a hop; one then answers, for a tenth, the other never does."""
    inputs = credit_inputs_of(
        step_rewards_BS=torch.tensor([[0.5, 0.0], [0.5, 0.0]]),
        step_mask_BS=torch.ones(2, 2, dtype=torch.bool),
        outcome_B=torch.tensor([0.1, 0.0]),
        group_size=2,
        step_kinds_BS=(("subanswer", "answer"), ("subanswer", "query")),
    )
    answered, endless = progress_credit(inputs, prior=0, gamma=1.0).tolist()
    assert answered == pytest.approx([0.6, 0.6])
    assert endless == pytest.approx([-0.6, -0.6])


def test_ranks_share_what_the_iteration_counts_for() -> None:
    whole, parts = advantages(*[NONE] * 2, WHOLE, HALF, group_size=2), []

    def others(own_2L: Tensor) -> Tensor:
        parts.append(own_2L)
        return own_2L + elsewhere_2L

    elsewhere_2L = torch.zeros(2, 1000, dtype=torch.float64)
    advantages(WHOLE, HALF, group_size=2, sum_over_ranks=others)  # pyright: ignore[reportArgumentType]
    elsewhere_2L = parts.pop()
    assert advantages(*[NONE] * 2, group_size=2, sum_over_ranks=others) == whole[:2]  # pyright: ignore


@pytest.mark.parametrize("process", [stop_or_go, right_twice, costly_search])
@pytest.mark.parametrize("prior", [0.0, 2.0])
def test_the_gradient_is_exact_whatever_the_lengths(process, prior: float) -> None:
    made = replace(process(0.7), kind=lambda _: "answer")
    credit = partial(progress_credit, prior=prior, gamma=1.0)
    assert expected_gradient(made, credit, group_size=3) == pytest.approx(made.exact_gradient)


def truth_of(credit: Credit) -> Credit:
    """With the truth as step reward: every claim is true, and an answer if it is right."""

    def credited(inputs: CreditInputs) -> Tensor:
        answers = [[kind == "answer" for kind in row] for row in inputs.step_kinds_BS]
        rewards_BS = torch.where(torch.tensor(answers), inputs.outcome_B[:, None], 1.0)
        return credit(replace(inputs, step_rewards_BS=rewards_BS.masked_fill(~inputs.step_mask_BS, 0.0)))

    return credited


def outcome_alone(inputs: CreditInputs) -> Tensor:
    return grpo_credit(replace(inputs, step_rewards_BS=torch.zeros_like(inputs.step_rewards_BS)))


FORMS: dict[str, Credit] = {
    "outcome alone, `grpo_credit`": outcome_alone,
    "truth, `dual_granularity_credit` (Eq 7), `beta: 1`": truth_of(partial(dual_granularity_credit, beta=1.0)),
    "truth, the same within kinds": truth_of(
        partial(dual_granularity_credit, beta=1.0, statistics="kind", scale=False)
    ),
    "truth, `potential_difference_credit`, `beta: 1`": truth_of(partial(potential_difference_credit, beta=1.0)),
    "progress, `grpo_credit`, `scale: false`": partial(grpo_credit, scale=False),
    "progress, `return_to_go_credit`": return_to_go_credit,
    "progress, `progress_credit`, `gamma: 1`": partial(progress_credit, gamma=1.0),
    "progress, `progress_credit`": progress_credit,
}
OBJECTIVES = {"exact": True, "exact, progress kept only with an answer": False}
EVENTS = ("answers too early", "settles a hop", "settles after a detour", "true, off the chain", "answers")


@cache
def worth(name: str) -> list[float]:
    """The mean advantage of each event, and the gradients of answering and of detours."""
    means = expected_advantages(chain(moves="answer"), FORMS[name], event)
    gradients = [expected_gradient(chain(moves=moves), FORMS[name], group_size=2) for moves in ("answer", "detour")]
    return [*(means[name] for name in EVENTS), *gradients]


def test_progress_credit_blames_an_early_answer_and_pays_hops_but_no_detour() -> None:
    early, settles, later, detour, answers, answering, detouring = worth("progress, `progress_credit`, `gamma: 1`")
    assert early < -0.2
    assert min(settles, later, answers) > 0.5
    assert detour < 0, "it takes a move"
    assert [answering, detouring] == pytest.approx(exact_gradients(kept=False), abs=1e-6)
    assert worth("progress, `progress_credit`")[-1] < 0, "a discounted detour is blamed too"


def exact_gradients(*, kept: bool) -> list[float]:
    return [chain(moves=moves, kept=kept).exact_gradient for moves in ("answer", "detour")]


def test_the_page_s_table_is_what_comes_out() -> None:
    text = PAGE.read_text()
    exact = {name: exact_gradients(kept=kept) for name, kept in OBJECTIVES.items()}
    rows = {name: f"| | | | | | {answering:.3f} | {detour:.3f} |" for name, (answering, detour) in exact.items()}
    rows |= {
        name: "| " + " | ".join(f"{value:.3f}".replace("-0.000", "0.000") for value in worth(name)) + " |"
        for name in FORMS
    }
    assert [row for name, row in rows.items() if f"| {name} {row}" not in text] == [], "\n".join(
        f"| {name} {row}" for name, row in rows.items()
    )
