"""Steps with labels: how right each step of an episode is, judged independently, as a reward model reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from envs.score_positions import ScoreBatch, ScoredSequence, collate_scored, scored_sequences
from envs.types import Episode


@dataclass(frozen=True, slots=True)
class LabelledEpisode:
    """An episode and the labels of its steps, in [0, 1].

    A label is None where the step was not judged, or where another episode that shares the step holds its label: no
    step is learnt twice.
    """

    episode: Episode
    labels: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class LabelledSequence:
    """Token ids with the score positions of labelled steps alone.

    Attributes:
        sequence: the ids and P positions.
        labels: `[P]`, in [0, 1].
        groups: `[P]`, the numbers of the groups within which steps are compared.
        numbers: `[P]`, the numbers of the steps among all that are labelled.
    """

    sequence: ScoredSequence
    labels: tuple[float, ...]
    groups: tuple[int, ...]
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.sequence)


@dataclass(slots=True)
class LabelBatch:
    """P labelled score positions in one batch.

    Attributes:
        sequences: the batch.
        label_P: `[P]` float32, how right each step is, in [0, 1].
        group_P: `[P]` int64; steps of one group are compared, others are not.
        number_P: `[P]` int64, the numbers of the steps among all that are labelled.
    """

    sequences: ScoreBatch
    label_P: Tensor
    group_P: Tensor
    number_P: Tensor

    def __len__(self) -> int:
        return len(self.label_P)


def labelled_positions(labelled: LabelledEpisode) -> list[tuple[ScoredSequence, tuple[int, ...]]]:
    """The sequences of an episode that hold labelled steps, each with the indices of these steps.

    Their score positions are those of the labelled steps; a step that the policy did not write has none.
    """
    found = []
    for sequence in scored_sequences(labelled.episode):
        kept = tuple(place for place in sequence.positions if labelled.labels[place.step] is not None)
        if kept:
            found.append((replace(sequence, positions=kept), tuple(place.step for place in kept)))
    return found


def collate_labelled(sequences: Sequence[LabelledSequence]) -> LabelBatch:
    """Labelled sequences as one batch; score positions are numbered row by row."""
    return LabelBatch(
        collate_scored([one.sequence for one in sequences]),
        torch.tensor([label for one in sequences for label in one.labels], dtype=torch.float32),
        torch.tensor([group for one in sequences for group in one.groups], dtype=torch.long),
        torch.tensor([number for one in sequences for number in one.numbers], dtype=torch.long),
    )
