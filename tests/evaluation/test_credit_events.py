"""Events of steps and what is made of them, by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from envs.types import Episode, Step
from evaluation.credit_events import EVENTS, event_advantages, gradient_signal, step_events, within_groups
from tests.tiny import question


def search(text: str, valid: bool = True) -> Step:
    return Step("query", valid, ((0, 0, 1),), query=text, claim="")


def claim(text: str) -> Step:
    return Step("subanswer", True, ((0, 0, 1),), claim=text)


ANSWER = Step("answer", True, ((0, 0, 1),), claim="Ada")
STEPS = (
    *(search("Who?"), claim("Ada"), search("who"), search("Where?"), claim("Oslo"), claim("Rome")),
    *(search("What?", valid=False), ANSWER),
)
VALID = (True, True, False, False, True, False, False, False)


def judged(*settled: int | None, valid: tuple[bool | None, ...] = VALID, left: int = 1) -> Any:
    return SimpleNamespace(valid=valid, settled=settled, open=left)


def episode(*steps: Step, status: Any = "answered") -> Episode:
    return Episode(question(), (1, 2), status=status, steps=steps)


def test_each_step_is_one_event() -> None:
    assert step_events(episode(*STEPS), judged(0, 1, 0, 0, 0, 0, 0, 0)) == [
        *("valid_query", "settles_a_hop", "repeated_search", "invalid_query", "true_off_the_chain", "untrue"),
        *("malformed", "answers_too_early"),
    ]


@pytest.mark.parametrize(
    ("right", "left", "event"), [(True, 0, "answers_rightly"), (False, 0, "answers_wrongly"), (False, 1, EVENTS[0])]
)
def test_an_answer_is_too_early_while_a_hop_is_open(right: bool, left: int, event: str) -> None:
    known = judged(2, 0, valid=(True, right), left=left)
    assert step_events(episode(claim("Ada"), ANSWER), known) == ["settles_a_hop", event]


def test_what_has_no_verdict_is_no_event() -> None:
    assert step_events(episode(ANSWER, ANSWER), judged(None, None, valid=(None, None))) == [None, None]


def test_advantages_by_event_and_shares_of_steps_that_the_policy_wrote() -> None:
    oracle: Any = SimpleNamespace(judge=lambda _: judged(0, 1, 0, 0, 0, 0, 0, 0))
    advantages_BS, mask_BS = torch.arange(16.0).view(2, 8), torch.ones(2, 8, dtype=torch.bool)
    mask_BS[0, 0] = False
    values = event_advantages([episode(*STEPS), episode(*STEPS)], advantages_BS, mask_BS, oracle)
    assert values["event/settles_a_hop/adv"].tolist() == [1, 9]
    assert values["event/valid_query/adv"].tolist() == [8]
    assert float(values["event/settles_a_hop/share"].mean()) == pytest.approx(2 / 15)
    failed = event_advantages([episode(*STEPS, status="error")], advantages_BS[:1], mask_BS[:1], oracle)
    assert failed.keys() == values.keys()
    assert not any(map(len, failed.values()))


def test_the_correlation_is_within_groups() -> None:
    """The second question's rewards are higher and its answers worse, which says nothing of its episodes."""
    rewards_BS = torch.tensor([[1.0, 0.0], [0.0, 0.0], [2.0, 2.0], [2.0, 1.0]])
    mask_BS = torch.tensor([[True, True], [True, True], [True, False], [True, True]])
    right_B = torch.tensor([1.0, 0.0, 0.0, 0.0])
    assert within_groups(rewards_BS, mask_BS, right_B, 2).tolist() == pytest.approx([0.25, 0.25, 0.5])
    unknown_B = torch.tensor([1.0, 0.0, math.nan, 0.0])
    assert within_groups(rewards_BS, mask_BS, unknown_B, 2).tolist() == pytest.approx([0.25, 0.125, 0.5])


def test_what_two_halves_share_is_signal() -> None:
    halves_2P = torch.tensor([[2.0, 1.0], [2.0, -1.0]])  # together (4, 0); 4 · 3 / 4
    assert gradient_signal(halves_2P, torch.tensor([1.0, 1.0])) == {
        "credit/signal_to_noise": 3.0,
        "credit/cosine_to_outcome": pytest.approx(math.sqrt(0.5)),
    }
    nothing = gradient_signal(torch.zeros(2, 2), torch.zeros(2))
    assert all(map(math.isnan, nothing.values()))
