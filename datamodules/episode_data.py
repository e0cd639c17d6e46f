"""Episodes as training data: for supervised fine-tuning and for refinement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common.seeds import stable_hash
from datamodules.batches import Batches, check_micro, passes_needed
from datamodules.records import EPISODE, episode_from_row
from datamodules.sources import Part, check_choice
from datamodules.stage_data import StageData
from envs.packing import PackedSequence, SequenceBatch, collate, pack


class EpisodeData(StageData[PackedSequence, SequenceBatch]):
    """The sequences of the episodes of a stage, packed; the sampled tokens of trainable turns are trained.

    An item is a sequence. Of several stages every optimiser step has its share of each.

    Args:
        micro_tokens: in place of `micro_batch`, padded tokens of one forward pass on each rank: a step is sorted by
            length and cut into as many passes as the longest sequences need. One longer sequence is a pass alone.
        agents: train the turns of these agents, whatever was marked when they were sampled; None trains the turns
            marked then.
        part: train on a part of the questions, by bounds in [0, 1] of a hash of the id: fits can share the episodes of
            one stage. Another hash than that of a source's `part`, whose questions it would not cut evenly.

    Raises:
        ConfigError: the bounds are not in order within [0, 1].
    """

    records = "episodes.jsonl"

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
        part: Part | None = None,
        seed: int = 0,
    ) -> None:
        sizes = {"batch_size": batch_size, "micro_batch": micro_batch, "max_tokens": max_tokens}
        super().__init__(path, validation=validation, seed=seed, **sizes)
        check_micro(micro_batch, micro_tokens)
        check_choice(part=part)
        self.micro_tokens, self.agents, self.part = micro_tokens, agents, part
        of = "" if agents is None else f" with a turn of {' or '.join(agents)}"
        self.nothing_left = f"no sequence of {EPISODE}{of} is left to train on"

    def setup(self, stage: str) -> None:
        if self.micro_tokens is None:
            super().setup(stage)
            return
        self.load()
        assert self.trainer is not None
        lengths = [len(sequence) for sequence in self.train]
        budget = {"batch_size": self.batch_size, "tokens": self.micro_tokens, "ranks": self.trainer.world_size}
        self.trainer.accumulate_grad_batches = passes_needed(lengths, **budget)

    def items(self) -> Iterator[tuple[str, PackedSequence]]:
        for path in self.paths:
            for _, episode in self.rows(path, episode_from_row, lambda episode: [episode]):
                if not self._in_part(episode.question.id):
                    continue
                if self.agents is not None:
                    for turn in episode.turns:
                        turn.trainable = turn.agent in self.agents
                for sequence in episode.sequences():
                    if len(sequence.ids) > self.max_tokens:
                        self.left_out[f"sequences of more than {self.max_tokens} tokens"] += 1
                    else:
                        yield episode.question.id, pack(sequence)

    def _in_part(self, question: str) -> bool:
        return self.part is None or self.part[0] <= stable_hash("episodes", question) / 2**63 < self.part[1]

    def tokens(self, item: PackedSequence) -> int:
        return len(item)

    def collate(self, items: Sequence[PackedSequence]) -> SequenceBatch:
        return collate(items or [PackedSequence.untrained()])

    def batches(
        self, items: Sequence[PackedSequence], *, shuffle: bool, **settings: Any
    ) -> Batches[PackedSequence, SequenceBatch]:
        if self.micro_tokens is not None:
            return super().batches(items, shuffle=shuffle, batch_size=self.batch_size, tokens=self.micro_tokens)
        if not shuffle:  # every held-out token counts once: the last batch is filled up with what trains nothing
            items = [*items, *[PackedSequence.untrained()] * (-len(items) % self.micro_batch)]
        step = self.batch_size // self.micro_batch if len(self.paths) > 1 else None
        return super().batches(items, shuffle=shuffle, step=step)
