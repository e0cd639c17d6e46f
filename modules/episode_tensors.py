"""Tensors of finished episodes, by step and by sampled token: the inputs of credit, and model outputs for tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from envs.packing import SequenceBatch, by_length, collate, pack
from envs.search_steps import last_passages, step_states
from envs.types import Episode
from modules.functional.credit_inputs import CreditInputs
from modules.rewards.terms import Scores

_TOKENS = 8192  # of one forward pass


def credit_inputs(episodes: Sequence[Episode], scores: Scores, group_size: int) -> CreditInputs:
    """`CreditInputs` of the scored episodes of one rank, which come group by group."""
    S = scores.step_mask_BS.shape[1]
    begun = [[e.turns[step.spans[0][0]] if step.spans else None for step in e.steps] for e in episodes]
    trained = [[torch.full((len(turn.action_ids),), turn.trainable) for turn in e.turns] for e in episodes]
    sampled = [[torch.tensor(turn.action_logps) for turn in e.turns] for e in episodes]
    valid = [[*[step.valid for step in e.steps], *[True] * (S - len(e.steps))] for e in episodes]
    outcomes = [scores.breakdown[name] for name in scores.outcome_weights]
    return CreditInputs(
        step_rewards_BS=scores.step_BS,
        step_mask_BS=scores.step_mask_BS,
        outcome_B=scores.outcome_B,
        outcomes_BR=torch.stack(outcomes, dim=1) if outcomes else scores.outcome_B.new_zeros(len(episodes), 0),
        outcome_weights_R=torch.tensor(list(scores.outcome_weights.values()), dtype=torch.float32),
        group_size=group_size,
        questions_B=tuple(e.question.id for e in episodes),
        step_lengths_BS=step_lengths(episodes, S),
        step_kinds_BS=_names([[step.kind for step in e.steps] for e in episodes], S),
        step_valid_BS=torch.tensor(valid, dtype=torch.bool).reshape(len(episodes), S),
        step_turns_BS=_names([[turn.uid if turn else "" for turn in row] for row in begun], S),
        step_states_BS=_names([step_states(e) for e in episodes], S),
        step_passages_BS=_names([last_passages(e) for e in episodes], S),
        step_agents_BS=_names([[turn.agent if turn else "" for turn in row] for row in begun], S),
        trained_BT=_by_token(episodes, trained).bool(),
        old_logps_BT=_by_token(episodes, sampled),
    )


def step_lengths(episodes: Sequence[Episode], S: int) -> Tensor:
    """Sampled tokens of each step, `[B, S]` int64, 0 where an episode has no such step."""
    rows = [[sum(end - start for _, start, end in step.spans) for step in episode.steps] for episode in episodes]
    return torch.tensor([[*row, *[0] * (S - len(row))] for row in rows], dtype=torch.long).reshape(len(rows), S)


@torch.no_grad()
def token_estimates(
    ask: Callable[[SequenceBatch], Tensor], episodes: Sequence[Episode], device: torch.device
) -> Tensor:
    """`[B, T]` float32 on the CPU: a model's output for each trained token, in the order of the steps; 0 elsewhere.

    Args:
        ask: maps a batch to `[B, T]`, an output at each of its trained tokens.
        episodes: B finished episodes; those that failed are asked about like the others.
        device: of the model that is asked.
    """
    turns = [[torch.zeros(len(turn.action_ids)) for turn in episode.turns] for episode in episodes]
    sequences = [(row, sequence) for row, episode in enumerate(episodes) for sequence in episode.sequences()]
    for part in by_length(sequences, length=lambda one: len(one[1].ids), tokens=_TOKENS):
        batch = collate([pack(sequence) for _, sequence in part])
        answers_BT = ask(move_data_to_device(batch, device)).float().cpu()
        for (row, sequence), answers_T, mask_T in zip(part, answers_BT, batch.loss_mask_BT, strict=True):
            trained = [turn for turn in sequence.turns if episodes[row].turns[turn].trainable]
            lengths = [len(episodes[row].turns[turn].action_ids) for turn in trained]
            for turn, answers_N in zip(trained, answers_T[mask_T].split(lengths), strict=True):
                turns[row][turn] = answers_N
    return _by_token(episodes, turns)


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


def _by_token(episodes: Sequence[Episode], turns: Sequence[Sequence[Tensor]]) -> Tensor:
    """`[B, T]`: values of the tokens of each episode's turns, in the order of its steps, 0 beyond the last."""
    return pad_sequence([by_step(e, rows) for e, rows in zip(episodes, turns, strict=True)], batch_first=True)


def _names(rows: Sequence[Sequence[str]], S: int) -> tuple[tuple[str, ...], ...]:
    return tuple((*row, *[""] * (S - len(row))) for row in rows)
