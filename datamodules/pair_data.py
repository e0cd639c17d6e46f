"""Pairs of steps as training data: read from a stage, held out question by question, served in batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

from lightning.pytorch import LightningDataModule

from common.errors import ConfigError, DataError
from common.seeds import stable_hash
from datamodules.batches import Batches, accumulate
from datamodules.model_ids import require_model_reads
from datamodules.records import numbered_rows, pair_from_row
from envs.score_positions import PairBatch, ScoredSequence, collate_pairs, kinds_of, scored_sequences
from envs.siblings import Pair
from envs.types import Episode

log = logging.getLogger(__name__)

Side = TypeVar("Side", bound=Sized)
Batch = TypeVar("Batch")


class Pairs(LightningDataModule, Generic[Side, Batch]):
    """The pairs of a stage; a subclass says what is read of the two sides of one, and makes batches.

    Args:
        path: a stage folder that holds `data/pairs.jsonl`.
        batch_size: pairs of an optimiser step, of all ranks together.
        micro_batch: pairs of one forward pass, of all ranks together; None takes all of a step at once.
        validation: share of the questions, by hash(seed, question id), whose pairs are held out of training.
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
        self.train: list[tuple[int, Side, Side]] = []  # the pair's number in the file, its better and its worse side
        self.held_out: list[tuple[int, Side, Side]] = []

    def sides(self, pair: Pair, where: str) -> tuple[Side, Side] | str:
        """The better and the worse side of a pair, or why it is left out; `where` names its row.

        Raises:
            DataError: the row makes no sense.
        """
        raise NotImplementedError

    def collate(self, items: Sequence[tuple[int, Side, Side]]) -> Batch:
        """A batch of pairs (number, better, worse)."""
        raise NotImplementedError

    def setup(self, stage: str) -> None:
        accumulate(self.trainer, self.batch_size, self.micro_batch)
        if self.train:
            return
        left_out: dict[str, int] = {}
        for number, (where, row) in enumerate(numbered_rows(self.path)):
            pair = pair_from_row(row, where)
            for side in (pair.chosen, pair.rejected):
                require_model_reads(self.trainer, side, where)
            sides = self.sides(pair, where)
            if not isinstance(sides, str) and max(map(len, sides)) > self.max_tokens:
                sides = f"of more than {self.max_tokens} tokens"
            if isinstance(sides, str):
                left_out[sides] = left_out.get(sides, 0) + 1
                continue
            place = stable_hash(self.seed, "validation", pair.chosen.question.id) / 2**63
            (self.held_out if place < self.validation else self.train).append((number, *sides))
        for why, count in left_out.items():
            log.warning("%s: %d pairs %s left out", self.path, count, why)
        if not self.train:
            raise DataError(f"{self.path}: no pair to train on is left; search more questions or look at the judge")

    def train_dataloader(self) -> Batches[tuple[int, Side, Side], Batch]:
        return self._batches(self.train, shuffle=True)

    def val_dataloader(self) -> Batches[tuple[int, Side, Side], Batch] | list[Batch]:
        return self._batches(self.held_out, shuffle=False) if self.held_out else []

    def _batches(self, items: list[tuple[int, Side, Side]], *, shuffle: bool) -> Batches[tuple[int, Side, Side], Batch]:
        return Batches.of(
            self.trainer,
            items,
            self.collate,
            batch_size=self.micro_batch,
            seed=self.seed,
            lengths=[len(chosen) for _, chosen, _ in items],
            shuffle=shuffle,
        )


class PairData(Pairs[ScoredSequence, PairBatch]):
    """The pairs as a reward model reads them: in each, the last steps of two episodes of one question are compared.

    Held-out pairs are for the pair accuracy and for the calibration of the scores.
    """

    def sides(self, pair: Pair, where: str) -> tuple[ScoredSequence, ScoredSequence]:
        return last_score_position(pair.chosen, where), last_score_position(pair.rejected, where)

    def collate(self, items: Sequence[tuple[int, ScoredSequence, ScoredSequence]]) -> PairBatch:
        return collate_pairs(items)

    def kinds(self) -> list[str]:
        """The kinds of the steps to train on."""
        return sorted(set(kinds_of(side for _, *sides in self.train for side in sides)))


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
