"""Events of an episode's steps by an oracle's verdicts, and the credit that each event gets. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from common.answers import normalize_answer
from envs.interfaces import Judgement, Oracle
from envs.types import Episode

EVENTS = (
    *("answers_too_early", "answers_rightly", "answers_wrongly", "settles_a_hop", "true_off_the_chain", "untrue"),
    *("valid_query", "invalid_query", "repeated_search", "malformed"),
)


def step_events(episode: Episode, judgement: Judgement) -> list[str | None]:
    """What each step does, out of `EVENTS`; None without a verdict, or where it does none of these.

    An answer is too early while a hop is open, whatever it says. A valid claim that settles nothing is off the chain,
    or said again after asking again; any other claim that settles nothing is `untrue`, also a true one whose query in
    the same step was invalid. A search in the words of an earlier one is repeated, whether it was valid or not.
    """
    events: list[str | None] = []
    left, asked = sum(n or 0 for n in judgement.settled) + (judgement.open or 0), set[str]()
    for step, right, settled in zip(episode.steps, judgement.valid, judgement.settled, strict=True):
        left, query = left - (settled or 0), normalize_answer(step.query)
        event = None
        if right is None or settled is None:
            pass
        elif not step.valid:
            event = "malformed"
        elif step.kind == "answer":
            event = "answers_too_early" if left else "answers_rightly" if right else "answers_wrongly"
        elif settled:
            event = "settles_a_hop"
        elif step.claim:
            event = "true_off_the_chain" if right else "untrue"
        elif query:
            event = "repeated_search" if query in asked else "valid_query" if right else "invalid_query"
        events.append(event)
        asked.add(query)
    return events


def event_advantages(
    episodes: Sequence[Episode], advantages_BS: Tensor, mask_BS: Tensor, oracle: Oracle
) -> dict[str, Tensor]:
    """By tag, the advantages of each event's steps, and its share of the steps of all events; always the same tags."""
    found: dict[str, list[float]] = defaultdict(list)
    for b, episode in enumerate(episodes):
        if episode.status != "error":
            for s, event in enumerate(step_events(episode, oracle.judge(episode))):
                if event is not None and bool(mask_BS[b, s]):
                    found[event].append(float(advantages_BS[b, s]))
    total = sum(map(len, found.values()))
    values = {f"event/{event}/adv": torch.tensor(found[event]) for event in EVENTS}
    return values | {f"event/{event}/share": (torch.arange(total) < len(found[event])).float() for event in EVENTS}


def within_groups(step_rewards_BS: Tensor, mask_BS: Tensor, outcome_B: Tensor, group_size: int) -> Tensor:
    """`[3]` sums over episodes of x·y, x², y²: x is the mean step reward, y the outcome, less their group's means.

    Their correlation is the first over the root of the product of the others. What is unknown is left out.
    """
    known_BS = mask_BS & step_rewards_BS.isfinite()
    means_B = step_rewards_BS.masked_fill(~known_BS, 0.0).sum(dim=1) / known_BS.sum(dim=1)
    known_QG = (means_B.isfinite() & outcome_B.isfinite()).view(-1, group_size)
    centred = []
    for values_B in (means_B, outcome_B):
        values_QG = values_B.double().view(-1, group_size).masked_fill(~known_QG, 0.0)
        mean_Q1 = values_QG.sum(dim=1, keepdim=True) / known_QG.sum(dim=1, keepdim=True).clamp(min=1)
        centred.append((values_QG - mean_Q1).masked_fill(~known_QG, 0.0))
    x_QG, y_QG = centred
    return torch.stack([(x_QG * y_QG).sum(), (x_QG**2).sum(), (y_QG**2).sum()])


def gradient_signal(halves_2P: Tensor, outcome_P: Tensor) -> dict[str, float]:
    """Signal-to-noise of a gradient from those of two halves of its batch, and its cosine to the outcome's gradient.

    Signal is the squared norm of the batch's expected gradient, noise that of its deviation from it. The estimate of
    one batch is rough, and may be below 0: average over many.
    """
    first_P, second_P = halves_2P.double()
    whole_P, outcome_P = first_P + second_P, outcome_P.double()
    noise = (first_P - second_P).square().sum()
    norms = whole_P.norm() * outcome_P.norm()
    return {
        "credit/signal_to_noise": float(4 * first_P @ second_P / noise) if noise > 0 else float("nan"),
        "credit/cosine_to_outcome": float(whole_P @ outcome_P / norms) if norms > 0 else float("nan"),
    }
