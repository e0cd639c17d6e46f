"""Pairs of turns in one context, as sequences of which the last turn alone trains, and in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from envs.packing import PackedSequence, SequenceBatch, collate, pack
from envs.types import Episode


@dataclass(slots=True)
class TurnPairBatch:
    """N pairs of turns.

    Attributes:
        sequences: `[2N, T]`, the chosen turns of all pairs and then the rejected ones, each with its context before it.
        number_N: `[N]` int64, the numbers of the pairs in their file.
    """

    sequences: SequenceBatch
    number_N: Tensor

    def __len__(self) -> int:
        return len(self.number_N)


def last_turn(episode: Episode) -> PackedSequence | None:
    """The last turn of an episode in the context that it was sampled in; None where it has no tokens that train.

    The ids are the episode's own. What was observed after the turn is left out.
    """
    if not episode.turns:
        return None
    before = [replace(turn, trainable=False) for turn in episode.turns[:-1]]
    turns = [*before, replace(episode.turns[-1], observation_ids=())]
    sequences = replace(episode, turns=turns).sequences()
    return pack(sequences[0]) if sequences else None


def context(sequence: PackedSequence) -> list[int]:
    """The ids before the first trained one."""
    return sequence.ids_T[: int(sequence.loss_mask_T.int().argmax())].tolist()


def collate_turn_pairs(pairs: Sequence[tuple[int, PackedSequence, PackedSequence]], pad_id: int = 0) -> TurnPairBatch:
    """Pairs (number, chosen, rejected) as a batch."""
    sequences = [chosen for _, chosen, _ in pairs] + [rejected for _, _, rejected in pairs]
    return TurnPairBatch(collate(sequences, pad_id), torch.tensor([number for number, *_ in pairs]))
