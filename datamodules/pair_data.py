"""Pairs of steps as training data of a reward model."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from lightning.pytorch import LightningDataModule

from common.errors import ConfigError, DataError
from common.seeds import stable_hash
from datamodules.batches import Batches, accumulate
from datamodules.records import numbered_rows, pair_from_row
from envs.score_positions import PairBatch, ScoredSequence, collate_pairs, scored_sequences
from envs.types import Episode

log = logging.getLogger(__name__)

Item = tuple[int, ScoredSequence, ScoredSequence]  # the pair's number in the file, the better and the worse step


class PairData(LightningDataModule):
    """The pairs of a stage: in each, the last steps of two episodes of one question are compared.

    Args:
        path: a stage folder that holds `data/pairs.jsonl`.
        batch_size: pairs of an optimiser step, of all ranks together.
        micro_batch: pairs of one forward pass, of all ranks together; None takes all of a step at once.
        validation: share of the questions, by hash(seed, question id), whose pairs are held out of training: for the
            pair accuracy and for the calibration of the scores.
        max_tokens: pairs with a longer sequence are left out and counted in the log.
        seed: of the order and of the held-out questions.

    Raises:
        ConfigError: a setting is out of range.
        DataError: on setting up, a row is malformed, or no pair is left to train on.
    """

    def __init__(
        self,
        path: Path,
        *,
        batch_size: int = 16,
        micro_batch: int | None = None,
        validation: float = 0.1,
        max_tokens: int = 4096,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 1 or not 0 <= validation < 1 or max_tokens < 2:
            settings = f"batch_size {batch_size}, validation {validation}, max_tokens {max_tokens}"
            raise ConfigError(f"{settings}: batch_size must be >= 1, validation in [0, 1), max_tokens >= 2")
        self.path, self.validation, self.max_tokens = Path(path) / "data" / "pairs.jsonl", validation, max_tokens
        self.batch_size, self.micro_batch, self.seed = batch_size, micro_batch or batch_size, seed
        self.train: list[Item] = []
        self.held_out: list[Item] = []

    def setup(self, stage: str) -> None:
        accumulate(self.trainer, self.batch_size, self.micro_batch)
        if self.train:
            return
        too_long = 0
        for number, (where, row) in enumerate(numbered_rows(self.path)):
            pair = pair_from_row(row, where)
            item = (number, last_score_position(pair.chosen, where), last_score_position(pair.rejected, where))
            if max(len(item[1].ids), len(item[2].ids)) > self.max_tokens:
                too_long += 1
                continue
            place = stable_hash(self.seed, "validation", pair.chosen.question.id) / 2**63
            (self.held_out if place < self.validation else self.train).append(item)
        if too_long:
            log.warning("%s: %d pairs of more than %d tokens left out", self.path, too_long, self.max_tokens)
        if not self.train:
            raise DataError(f"{self.path}: no pair to train on is left; search more questions or look at the judge")

    def train_dataloader(self) -> Batches[Item, PairBatch]:
        return self._batches(self.train, shuffle=True)

    def val_dataloader(self) -> Batches[Item, PairBatch] | list[PairBatch]:
        return self._batches(self.held_out, shuffle=False) if self.held_out else []

    def _batches(self, items: list[Item], *, shuffle: bool) -> Batches[Item, PairBatch]:
        return Batches.of(
            self.trainer,
            items,
            collate_pairs,
            batch_size=self.micro_batch,
            seed=self.seed,
            lengths=[len(chosen.ids) for _, chosen, _ in items],
            shuffle=shuffle,
        )


def last_score_position(episode: Episode, where: str) -> ScoredSequence:
    """The sequence that holds the score position of the last step, with that score position alone.

    Raises:
        DataError: the episode has no last step that the policy wrote.
    """
    last = len(episode.steps) - 1
    for sequence in scored_sequences(episode):
        for position in sequence.positions:
            if position.step == last:
                return replace(sequence, positions=(position,))
    raise DataError(f"{where}: the episode does not end in a step with sampled tokens")
