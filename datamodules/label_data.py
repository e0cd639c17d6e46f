"""Labelled steps as training data: read from stages, held out question by question, served question by question."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from lightning.pytorch import LightningDataModule

from common.errors import ConfigError, DataError
from common.seeds import stable_hash
from datamodules.batches import Batches, accumulate
from datamodules.model_ids import require_model_reads
from datamodules.records import labelled_from_row, numbered_rows
from envs.labelled_steps import LabelBatch, LabelledEpisode, LabelledSequence, collate_labelled, labelled_positions
from envs.score_positions import ScoredSequence, kinds_of

log = logging.getLogger(__name__)

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
        """What is labelled of one question, in parts of at most `max_tokens`, in its order."""
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


def collate_items(items: Sequence[Item]) -> LabelBatch:
    """Items as one batch."""
    return collate_labelled([sequence for item in items for sequence in item])


def _kinds_and_labels(labelled: LabelledEpisode) -> list[_Labels]:
    """The sequences of an episode with the kind and the label of each position."""
    steps = labelled.episode.steps
    return [
        (sequence, tuple((steps[place].kind, labelled.labels[place] or 0.0) for place in places))
        for sequence, places in labelled_positions(labelled)
    ]


class LabelData(LightningDataModule):
    """The labelled steps of one or several stages.

    An item is what is labelled of one question, or a part of it where that is more than `max_tokens`. Steps of one item
    and of one kind are a group: a ranking loss compares them, and no others. So a step of the optimiser is the same
    however its items are shared out over ranks.

    Args:
        path: a stage folder that holds `data/labels.jsonl`, or several.
        batch_size: items of an optimiser step, of all ranks together.
        micro_batch: items of one forward pass, of all ranks together; None takes all of a step at once.
        validation: share of the questions, by hash(seed, question id), kept out of training: for `val_loss`,
            `prm/pair_accuracy` and the calibration of the scores.
        max_tokens: of an item; a longer sequence is left out and counted in the log.
        seed: of the order and of the held-out questions.

    Raises:
        ConfigError: a setting is out of range.
        DataError: on setting up, a row is malformed, or no labelled step is left to train on.
    """

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
        super().__init__()
        if batch_size < 1 or not 0 <= validation < 1 or max_tokens < 2:
            settings = f"batch_size {batch_size}, validation {validation}, max_tokens {max_tokens}"
            raise ConfigError(f"{settings}: batch_size must be >= 1, validation in [0, 1), max_tokens >= 2")
        folders = path if isinstance(path, list) else [path]
        self.paths = [Path(folder) / "data" / "labels.jsonl" for folder in folders]
        self.batch_size, self.micro_batch = batch_size, micro_batch or batch_size
        self.validation, self.max_tokens, self.seed = validation, max_tokens, seed
        self.train: list[Item] = []
        self.held_out: list[Item] = []

    def setup(self, stage: str) -> None:
        accumulate(self.trainer, self.batch_size, self.micro_batch)
        if self.train:
            return
        items = Items(self.max_tokens)
        for path in self.paths:
            for question, labelled in groupby(self._rows(path), key=lambda one: one.episode.question.id):
                place = stable_hash(self.seed, "validation", question) / 2**63
                (self.held_out if place < self.validation else self.train).extend(items.of_question(labelled))
        where = ", ".join(map(str, self.paths))
        if items.too_long:
            log.warning("%s: %d sequences of more than %d tokens left out", where, items.too_long, self.max_tokens)
        if not self.train:
            raise DataError(
                f"{where}: no labelled step to train on is left; search more questions, or look at the judge"
            )

    def _rows(self, path: Path) -> Iterator[LabelledEpisode]:
        for where, row in numbered_rows(path):
            labelled = labelled_from_row(row, where)
            require_model_reads(self.trainer, labelled.episode, where)
            yield labelled

    def kinds(self) -> list[str]:
        """The kinds of the steps to train on."""
        return sorted(set(kinds_of(one.sequence for item in self.train for one in item)))

    def train_dataloader(self) -> Batches[Item, LabelBatch]:
        return self._batches(self.train, shuffle=True)

    def val_dataloader(self) -> Batches[Item, LabelBatch] | list[LabelBatch]:
        return self._batches(self.held_out, shuffle=False) if self.held_out else []

    def _batches(self, items: list[Item], *, shuffle: bool) -> Batches[Item, LabelBatch]:
        return Batches.of(
            self.trainer,
            items,
            collate_items,
            batch_size=self.micro_batch,
            seed=self.seed,
            lengths=[sum(map(len, item)) for item in items],
            shuffle=shuffle,
        )
