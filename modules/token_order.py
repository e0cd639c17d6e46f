"""The sampled tokens of an episode in two orders: that of its steps, which credit reads, and turn by turn, to train.

They differ where a step spans parts of several turns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envs.types import Episode


def by_step(episode: Episode, turns: Sequence[Tensor]) -> Tensor:
    """`[T]`: values of the tokens of each turn, in the order of the steps."""
    pieces = [turns[turn][start:end] for step in episode.steps for turn, start, end in step.spans]
    return torch.cat(pieces) if pieces else torch.zeros(0)


def by_turn(episode: Episode, values_CT: Tensor) -> list[Tensor]:
    """`[C, n]` for each turn of n tokens: C values of each token, from `[C, T]` in the order of the steps.

    They are 0 for tokens in no step.
    """
    turns = [values_CT.new_zeros(len(values_CT), len(turn.action_ids)) for turn in episode.turns]
    place = 0
    for step in episode.steps:
        for turn, start, end in step.spans:
            turns[turn][:, start:end] = values_CT[:, place : place + end - start]
            place += end - start
    return turns
