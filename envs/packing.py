"""From training sequences to tensors: packed one by one, then padded into batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from envs.types import TrainingSequence


@dataclass(slots=True)
class PackedSequence:
    """A training sequence as tensors of length T, a fraction of the size of its tuples.

    `advantages_T` is what reinforcement learning adds; None elsewhere.
    """

    ids_T: Tensor
    loss_mask_T: Tensor
    step_index_T: Tensor
    logps_T: Tensor
    advantages_T: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids_T)

    @classmethod
    def untrained(cls) -> PackedSequence:
        """Two tokens that train nothing, to fill a batch up: every rank takes every step."""
        return cls(
            ids_T=torch.zeros(2, dtype=torch.int32),
            loss_mask_T=torch.zeros(2, dtype=torch.bool),
            step_index_T=torch.full((2,), -1, dtype=torch.int16),
            logps_T=torch.zeros(2),
            advantages_T=torch.zeros(2),
        )


@dataclass(slots=True)
class SequenceBatch:
    """B packed sequences, padded on the right to T.

    Attributes:
        ids_BT: `[B, T]` int64.
        attention_BT: `[B, T]` bool, False on padding.
        loss_mask_BT: `[B, T]` bool, True on policy-sampled tokens that are trained.
        step_index_BT: `[B, T]` int64, the step of each of those, -1 elsewhere.
        logps_BT: `[B, T]` float32, stored log-probabilities, 0 elsewhere.
        advantages_BT: `[B, T]` float32, 0 elsewhere; None outside reinforcement learning.
    """

    ids_BT: Tensor
    attention_BT: Tensor
    loss_mask_BT: Tensor
    step_index_BT: Tensor
    logps_BT: Tensor
    advantages_BT: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids_BT)


def pack(sequence: TrainingSequence) -> PackedSequence:
    """The tensors of one training sequence."""
    return PackedSequence(
        torch.tensor(sequence.ids, dtype=torch.int32),
        torch.tensor(sequence.loss_mask, dtype=torch.bool),
        torch.tensor(sequence.step_index, dtype=torch.int16),
        torch.tensor(sequence.logps, dtype=torch.float32),
    )


def collate(sequences: Sequence[PackedSequence], pad_id: int = 0) -> SequenceBatch:
    """Pad sequences into one batch."""

    def padded(rows: Sequence[Tensor], value: float) -> Tensor:
        return pad_sequence(list(rows), batch_first=True, padding_value=value)

    lengths = torch.tensor([len(sequence) for sequence in sequences])
    advantages = [s.advantages_T for s in sequences if s.advantages_T is not None]
    return SequenceBatch(
        ids_BT=padded([s.ids_T for s in sequences], pad_id).long(),
        attention_BT=torch.arange(int(lengths.max()))[None, :] < lengths[:, None],
        loss_mask_BT=padded([s.loss_mask_T for s in sequences], False),
        step_index_BT=padded([s.step_index_T for s in sequences], -1).long(),
        logps_BT=padded([s.logps_T for s in sequences], 0.0),
        advantages_BT=padded(advantages, 0.0) if len(advantages) == len(sequences) else None,
    )
