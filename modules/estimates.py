"""What a model says of every token that finished episodes will train, asked in batches outside of training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from envs.packing import SequenceBatch, by_length, collate, pack
from envs.types import Episode
from modules.training_rows import by_step

_TOKENS = 8192  # of one forward pass


@torch.no_grad()
def token_estimates(
    ask: Callable[[SequenceBatch], Tensor], episodes: Sequence[Episode], device: torch.device
) -> Tensor:
    """`[B, T]` float32 on the CPU: an answer for each sampled token, in the order of the steps; 0 where none trains.

    Args:
        ask: from a batch to `[B, T]`, an answer at each of its trained tokens.
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
    return pad_sequence([by_step(e, rows) for e, rows in zip(episodes, turns, strict=True)], batch_first=True)
