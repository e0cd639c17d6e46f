"""From training sequences, and pairs of turns, to tensors: packed one by one, then padded into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from envs.types import Episode, TrainingSequence

# What reinforcement learning may add to every trained token: the log-probs are those of the policy before the update,
# where they are recomputed, and of the reference.
CHANNELS = ("advantages", "values", "returns", "old_logps", "reference_logps")

_Item = TypeVar("_Item")


@dataclass(slots=True)
class PackedSequence:
    """A training sequence as tensors of length T, a fraction of the size of its tuples.

    `channels` are more float tensors of length T, by name out of `CHANNELS`; 0 where nothing is trained. `owner` names
    the model that reads it, where a module trains several.
    """

    ids_T: Tensor
    loss_mask_T: Tensor
    step_index_T: Tensor
    logps_T: Tensor
    channels: dict[str, Tensor] = field(default_factory=dict)
    owner: str = ""

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
            channels={name: torch.zeros(2) for name in CHANNELS},
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
        channels: those that all sequences have, by name: `[B, T]` float32, 0 elsewhere.
        owners: B names of the models that read the rows, where a module trains several.
    """

    ids_BT: Tensor
    attention_BT: Tensor
    loss_mask_BT: Tensor
    step_index_BT: Tensor
    logps_BT: Tensor
    channels: dict[str, Tensor] = field(default_factory=dict)
    owners: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids_BT)

    def of(self, owner: str) -> SequenceBatch:
        """The rows of one model, without columns of padding alone; an untrained row where it has none."""
        rows = [row for row, name in enumerate(self.owners) if name == owner]
        if not rows:
            return collate([PackedSequence.untrained()])._changed(lambda tensor_BT: tensor_BT.to(self.ids_BT.device))
        longest = int(self.attention_BT[rows].sum(dim=1).max())
        return self._changed(lambda tensor_BT: tensor_BT[rows, :longest])

    def _changed(self, change: Callable[[Tensor], Tensor]) -> SequenceBatch:
        """With all tensors changed alike; without owners."""
        return SequenceBatch(
            ids_BT=change(self.ids_BT),
            attention_BT=change(self.attention_BT),
            loss_mask_BT=change(self.loss_mask_BT),
            step_index_BT=change(self.step_index_BT),
            logps_BT=change(self.logps_BT),
            channels={name: change(values_BT) for name, values_BT in self.channels.items()},
        )


def pack(sequence: TrainingSequence) -> PackedSequence:
    """The tensors of one training sequence."""
    return PackedSequence(
        torch.tensor(sequence.ids, dtype=torch.int32),
        torch.tensor(sequence.loss_mask, dtype=torch.bool),
        torch.tensor(sequence.step_index, dtype=torch.int16),
        torch.tensor(sequence.logps, dtype=torch.float32),
    )


def collate(sequences: Sequence[PackedSequence]) -> SequenceBatch:
    """Pad sequences into one batch."""

    def padded(rows: Sequence[Tensor], value: float) -> Tensor:
        return pad_sequence(list(rows), batch_first=True, padding_value=value)

    lengths = torch.tensor([len(sequence) for sequence in sequences])
    channels = [name for name in CHANNELS if all(name in s.channels for s in sequences)]
    return SequenceBatch(
        ids_BT=padded([s.ids_T for s in sequences], 0).long(),
        attention_BT=torch.arange(int(lengths.max()))[None, :] < lengths[:, None],
        loss_mask_BT=padded([s.loss_mask_T for s in sequences], False),
        step_index_BT=padded([s.step_index_T for s in sequences], -1).long(),
        logps_BT=padded([s.logps_T for s in sequences], 0.0),
        channels={name: padded([s.channels[name] for s in sequences], 0.0) for name in channels},
        owners=tuple(s.owner for s in sequences),
    )


def by_length(
    items: Sequence[_Item], *, length: Callable[[_Item], int], tokens: int, rows: Callable[[_Item], int] = lambda _: 1
) -> Iterator[list[_Item]]:
    """Batches of at most `tokens` padded tokens, or of one item; longest first, which pads least.

    Args:
        length: tokens of an item's longest row.
        rows: how many rows an item has, all in one batch.
    """
    batch: list[_Item] = []
    used = longest = 0
    for item in sorted(items, key=length, reverse=True):
        if batch and (used + rows(item)) * longest > tokens:
            yield batch
            batch, used = [], 0
        if not batch:
            longest = length(item)
        batch.append(item)
        used += rows(item)
    if batch:
        yield batch


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


def collate_turn_pairs(pairs: Sequence[tuple[int, PackedSequence, PackedSequence]]) -> TurnPairBatch:
    """Pairs (number, chosen, rejected) as a batch."""
    sequences = [chosen for _, chosen, _ in pairs] + [rejected for _, _, rejected in pairs]
    return TurnPairBatch(collate(sequences), torch.tensor([number for number, *_ in pairs]))
