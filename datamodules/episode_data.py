"""Episodes as training data: for supervised fine-tuning and for refinement."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule

from common.errors import ConfigError, DataError
from common.seeds import stable_hash
from datamodules.batches import Batches, accumulate, check_micro, passes_needed
from datamodules.model_ids import require_model_reads
from datamodules.records import EPISODE, episode_from_row, numbered_rows
from envs.packing import PackedSequence, SequenceBatch, collate, pack

log = logging.getLogger(__name__)


class EpisodeData(LightningDataModule):
    """The sequences of the episodes of a stage, packed; the sampled tokens of trainable turns are trained.

    Args:
        path: a stage folder that holds `data/episodes.jsonl`, or several, whose episodes are mixed:
            every optimiser step has its share of each.
        batch_size: sequences of an optimiser step, of all ranks together.
        micro_batch: sequences of one forward pass, of all ranks together; None takes all of a step at once. The
            Trainer's `accumulate_grad_batches` follows from it.
        micro_tokens: in place of `micro_batch`, padded tokens of one forward pass on each rank: a step is sorted by
            length and cut into as many passes as the longest sequences need. One longer sequence is a pass by itself.
        validation: share of the questions kept out of training for the validation loss, by hash(seed, question id).
        max_tokens: longer sequences are left out, and counted.
        agents: whose turns are trained, whether or not they were marked so where they were sampled; None trains the
            turns that were.
        seed: of the order.

    Raises:
        ConfigError: a setting is out of range.
        DataError: on setting up, a row is malformed, the model does not read its ids, or no sequence is left to train
            on.
    """

    def __init__(
        self,
        path: Path | list[Path],
        *,
        batch_size: int = 16,
        micro_batch: int | None = None,
        micro_tokens: int | None = None,
        validation: float = 0.0,
        max_tokens: int = 4096,
        agents: tuple[str, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 1 or not 0 <= validation < 1 or max_tokens < 2:
            settings = f"batch_size {batch_size}, validation {validation}, max_tokens {max_tokens}"
            raise ConfigError(f"{settings}: batch_size must be >= 1, validation in [0, 1), max_tokens >= 2")
        check_micro(micro_batch, micro_tokens)
        folders = path if isinstance(path, list) else [path]
        self.paths = [Path(folder) / "data" / "episodes.jsonl" for folder in folders]
        self.validation, self.max_tokens, self.agents = validation, max_tokens, agents
        self.batch_size, self.micro_batch, self.seed = batch_size, micro_batch or batch_size, seed
        self.micro_tokens = micro_tokens
        self.train: list[PackedSequence] = []
        self.held_out: list[PackedSequence] = []

    def setup(self, stage: str) -> None:
        if self.micro_tokens is None:
            accumulate(self.trainer, self.batch_size, self.micro_batch)
        if not self.train:
            self._read()
        if self.micro_tokens is not None:
            assert self.trainer is not None
            lengths = [len(sequence) for sequence in self.train]
            budget = {"batch_size": self.batch_size, "tokens": self.micro_tokens, "ranks": self.trainer.world_size}
            self.trainer.accumulate_grad_batches = passes_needed(lengths, **budget)

    def _read(self) -> None:
        too_long = 0
        for where, row in (pair for path in self.paths for pair in numbered_rows(path)):
            episode = episode_from_row(row, where)
            require_model_reads(self.trainer, episode, where)
            if self.agents is not None:
                for turn in episode.turns:
                    turn.trainable = turn.agent in self.agents
            place = stable_hash(self.seed, "validation", episode.question.id) / 2**63
            part = self.held_out if place < self.validation else self.train
            for sequence in episode.sequences():
                if len(sequence.ids) > self.max_tokens:
                    too_long += 1
                else:
                    part.append(pack(sequence))
        if too_long:
            log.warning("%s: %d sequences of more than %d tokens left out", self._where(), too_long, self.max_tokens)
        if not self.train:
            of = "" if self.agents is None else f" with a turn of {' or '.join(self.agents)}"
            raise DataError(f"{self._where()}: no sequence of {EPISODE}{of} is left to train on")

    def _where(self) -> str:
        return ", ".join(map(str, self.paths))

    def train_dataloader(self) -> Batches[PackedSequence, SequenceBatch]:
        return self._batches(self.train, shuffle=True)

    def val_dataloader(self) -> Batches[PackedSequence, SequenceBatch] | list[SequenceBatch]:
        if not self.held_out:
            return []
        if self.micro_tokens is not None:
            return self._batches(self.held_out, shuffle=False)
        filled = self.held_out + [PackedSequence.untrained()] * (-len(self.held_out) % self.micro_batch)
        return self._batches(filled, shuffle=False)

    def _batches(self, sequences: list[PackedSequence], *, shuffle: bool) -> Batches[PackedSequence, SequenceBatch]:
        settings: dict[str, Any] = {"batch_size": self.batch_size, "tokens": self.micro_tokens}
        if self.micro_tokens is None:
            step = self.batch_size // self.micro_batch if len(self.paths) > 1 else None
            settings = {"batch_size": self.micro_batch, "step": step}
        return Batches.of(
            self.trainer,
            sequences,
            lambda rows: collate(rows or [PackedSequence.untrained()]),
            seed=self.seed,
            lengths=[len(sequence) for sequence in sequences],
            shuffle=shuffle,
            **settings,
        )
