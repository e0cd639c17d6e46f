"""Tokens of each agent in episodes of several, and those that count once though many episodes hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from envs.types import Episode, Turn
from modules.functional.credit_inputs import CreditInputs
from modules.training_rows import token_advantages


def keeping(trains: Callable[[Turn], bool], episode: Episode) -> Episode:
    """The episode with all turns masked but those that meet a condition."""
    turns = [turn if trains(turn) else replace(turn, trainable=False) for turn in episode.turns]
    return replace(episode, turns=turns)


def only(agent: str, episode: Episode) -> Episode:
    """The episode as one agent trains on it: the turns of all others are masked."""
    return keeping(lambda turn: turn.agent == agent, episode)


def tokens_of(agent: str, inputs: CreditInputs) -> Tensor:
    """`[B, T]` bool: the trained tokens of an agent."""
    return _tokens([[name == agent for name in row] for row in inputs.step_agents_BS], inputs)


def counted_once(inputs: CreditInputs, kept_B: Tensor) -> Tensor:
    """`[B, T]` bool: the tokens that train, those of a turn that several kept episodes share in the first of them."""
    unknown, first = unknown_turns(inputs), dict[str, int]()
    for row, turns in enumerate(inputs.step_turns_BS):
        if kept_B[row]:
            for turn in turns:
                first.setdefault(turn, row)
    return _tokens(
        [
            [first.get(turn) == row and turn not in unknown for turn in turns]
            for row, turns in enumerate(inputs.step_turns_BS)
        ],
        inputs,
    )


def unknown_turns(inputs: CreditInputs) -> set[str]:
    """The uids of turns that begin a step whose reward is unknown: a judge that failed gives no credit."""
    unknown_BS = inputs.step_mask_BS & inputs.step_rewards_BS.isnan()
    return {inputs.step_turns_BS[row][column] for row, column in unknown_BS.nonzero()}


def _tokens(steps: Sequence[Sequence[bool]], inputs: CreditInputs) -> Tensor:
    """`[B, T]`: a value of each step, repeated for its trained tokens."""
    flags_BS = torch.tensor([list(row) for row in steps]).reshape(inputs.step_lengths_BS.shape)
    return token_advantages(flags_BS.float(), inputs.step_lengths_BS).bool() & inputs.trained_BT
