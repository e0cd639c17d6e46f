"""Labelled steps as training data, served question by question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from datamodules.records import labelled_from_row
from datamodules.stage_data import StageData
from envs.labelled_steps import LabelBatch, LabelledEpisode, LabelledSequence, collate_labelled, labelled_positions
from envs.score_positions import ScoredSequence, kinds_of

Item = list[LabelledSequence]  # sequences of one question
_Labels = tuple[ScoredSequence, tuple[tuple[str, float], ...]]  # a sequence, and kind and label of each position


class Items:
    """Makes items of labelled episodes, and numbers their steps and groups.

    Args:
        max_tokens: of an item.

    Attributes:
        steps, groups: how many there are so far.
        too_long: sequences left out so far.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.steps = self.groups = self.too_long = 0

    def of_question(self, labelled: Iterable[LabelledEpisode]) -> list[Item]:
        """Labelled sequences of one question, in items of at most `max_tokens`, in order."""
        parts: list[list[_Labels]] = []
        for sequence, labels in (one for episode in labelled for one in _kinds_and_labels(episode)):
            if len(sequence) > self.max_tokens:
                self.too_long += 1
            elif parts and sum(len(other) for other, _ in parts[-1]) + len(sequence) <= self.max_tokens:
                parts[-1].append((sequence, labels))
            else:
                parts.append([(sequence, labels)])
        return [self._item(part) for part in parts]

    def _item(self, part: Sequence[_Labels]) -> Item:
        kinds = sorted({kind for _, labels in part for kind, _ in labels})
        item: Item = []
        for sequence, labels in part:
            groups = tuple(self.groups + kinds.index(kind) for kind, _ in labels)
            numbers = tuple(range(self.steps, self.steps + len(labels)))
            item.append(LabelledSequence(sequence, tuple(label for _, label in labels), groups, numbers))
            self.steps += len(labels)
        self.groups += len(kinds)
        return item


def _kinds_and_labels(labelled: LabelledEpisode) -> list[_Labels]:
    """The sequences of an episode with the kind and the label of each position."""
    steps = labelled.episode.steps
    return [
        (sequence, tuple((steps[place].kind, labelled.labels[place] or 0.0) for place in places))
        for sequence, places in labelled_positions(labelled)
    ]


class LabelData(StageData[Item, LabelBatch]):
    """The labelled steps of one or several stages.

    An item is what is labelled of one question, or a part of it where that is more than `max_tokens`. Steps of one item
    and of one kind are a group: a ranking loss compares them, and no others. So a step of the optimiser is the same
    however its items are shared out over ranks. A sequence of more than `max_tokens` is left out.

    Held-out questions are for `val_loss`, `prm/pair_accuracy` and the calibration of the scores.
    """

    records = "labels.jsonl"
    nothing_left = "no labelled step to train on is left; search more questions, or look at the judge"

    def __init__(
        self,
        path: Path | list[Path],
        *,
        batch_size: int = 8,
        micro_batch: int | None = None,
        validation: float = 0.1,
        max_tokens: int = 4096,
        seed: int = 0,
    ) -> None:
        sizes = {"batch_size": batch_size, "micro_batch": micro_batch, "max_tokens": max_tokens}
        super().__init__(path, validation=validation, seed=seed, **sizes)

    def items(self) -> Iterator[tuple[str, Item]]:
        items = Items(self.max_tokens)
        for path in self.paths:
            rows = (one for _, one in self.rows(path, labelled_from_row, lambda one: [one.episode]))
            for question, labelled in groupby(rows, key=lambda one: one.episode.question.id):
                yield from ((question, item) for item in items.of_question(labelled))
        self.left_out += {f"sequences of more than {self.max_tokens} tokens": items.too_long}

    def tokens(self, item: Item) -> int:
        return sum(map(len, item))

    def collate(self, items: Sequence[Item]) -> LabelBatch:
        return collate_labelled([sequence for item in items for sequence in item])

    def kinds(self) -> list[str]:
        """The kinds of the steps to train on."""
        return sorted(set(kinds_of(one.sequence for item in self.train for one in item)))
