"""Questions for reinforcement learning, and the buffer through which an iteration's episodes reach the Trainer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from lightning.pytorch import LightningDataModule

from common.errors import ConfigError, DataError
from common.seeds import stable_hash
from datamodules.batches import accumulate, check_micro, items_of_a_pass
from datamodules.sources import Source
from envs.packing import PackedSequence, SequenceBatch, by_length, collate
from envs.types import Question


class QuestionData(LightningDataModule):
    """One Lightning epoch is one iteration: a rollout fills the buffer, the loader serves it in micro-batches.

    Every question is used once before any is used again, each round in another order. A rank owns whole groups, the
    episodes of one question. Sequences of an update share batches by length. Neither buffer nor position is ever
    saved: checkpoints are written at the ends of iterations, and an interrupted iteration is repeated.

    Args:
        questions: the questions to train on.
        questions_per_iteration: of all ranks together.
        group_size: episodes a question.
        updates: optimiser steps an iteration, each on an equal share of the questions.
        micro_batch: episodes of one forward pass, of all ranks together, but at least one on each; None takes all of
            an update at once. The Trainer's `accumulate_grad_batches` follows from it. Episodes of several sequences
            are not kept together: an update is cut into as many passes with equally many sequences.
        micro_tokens: in place of `micro_batch`, padded tokens of one forward pass on each rank: an update is sorted by
            length and cut into passes of at most so many, or of one episode. Lengths are not known before the rollout,
            so the Trainer counts a pass an episode; those that are not needed hold two tokens that train nothing.
        seed: of the order, and of the rollouts.

    Raises:
        ConfigError: a setting is out of range; on setting up, sizes do not divide or there are too few questions.
        DataError: on setting up, two questions have one id.
    """

    role = "rl"

    def __init__(
        self,
        questions: Source,
        *,
        questions_per_iteration: int = 8,
        group_size: int = 8,
        updates: int = 1,
        micro_batch: int | None = None,
        micro_tokens: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        sizes = (questions_per_iteration, group_size, updates, 1 if micro_batch is None else micro_batch)
        if min(sizes) < 1 or questions_per_iteration % updates:
            raise ConfigError(
                f"questions_per_iteration {questions_per_iteration}, group_size {group_size}, updates {updates}, "
                f"micro_batch {micro_batch}: each must be at least 1, and the updates must divide the questions evenly"
            )
        check_micro(micro_batch, micro_tokens)
        self.questions, self.questions_per_iteration, self.updates = questions, questions_per_iteration, updates
        self.group_size, self.seed = group_size, seed
        self.batch_size = questions_per_iteration // updates * group_size  # episodes of an update
        self.micro_batch, self.micro_tokens = micro_batch or self.batch_size, micro_tokens
        self._pool: list[Question] = []
        self._orders: list[list[Question]] = []
        self._buffer: IterationBuffer | None = None

    @staticmethod
    def check_ranks(
        ranks: int,
        *,
        questions_per_iteration: int,
        group_size: int,
        updates: int,
        micro_batch: int | None,
        micro_tokens: int | None,
        **_: Any,
    ) -> None:
        """Require sizes that so many ranks can share; called with all settings when a run is planned.

        Raises:
            ConfigError: they cannot.
        """
        questions = questions_per_iteration // updates
        if questions % ranks:
            raise ConfigError(
                f"questions_per_iteration {questions_per_iteration}: {questions} questions an update do not divide "
                f"among {ranks} ranks, which own whole groups"
            )
        if micro_tokens is None:
            items_of_a_pass(questions * group_size, micro_batch, ranks)

    def setup(self, stage: str) -> None:
        assert self.trainer is not None
        self.check_ranks(self.trainer.world_size, **vars(self))
        micro_batch = self.micro_batch if self.micro_tokens is None else 1  # an episode on each rank
        self.micro_batch = accumulate(self.trainer, self.batch_size, micro_batch)
        if self._pool:
            return
        self._pool = list(self.questions)
        if len(self._pool) < self.questions_per_iteration:
            raise ConfigError(
                f"{len(self._pool)} questions are too few for {self.questions_per_iteration} an iteration: "
                "lower questions_per_iteration"
            )
        if len({question.id for question in self._pool}) < len(self._pool):
            raise DataError(
                "two questions for reinforcement learning have the same id: their episodes would be the same"
            )

    def share(self, iteration: int) -> list[Question]:
        """This rank's questions of an iteration."""
        assert self.trainer is not None
        return self.chosen(iteration)[self.trainer.global_rank :: self.trainer.world_size]

    def chosen(self, iteration: int) -> list[Question]:
        """All ranks' questions of an iteration, all different."""
        size, count = len(self._pool), self.questions_per_iteration
        start, stop = iteration * count, (iteration + 1) * count
        rounds = range(start // size, (stop - 1) // size + 1)
        return [q for r in rounds for q in self._order(r)[max(0, start - r * size) : stop - r * size]]

    def spares(self, iteration: int, round: int) -> list[Question]:
        """Questions in the place of this rank's share, for a round that replaces some of them; the first round is 0.

        The place of a question among all ranks' and the round decide what replaces it, so it is the same however many
        ranks there are, and nobody needs to know what others replace. No question is twice in an iteration.

        Raises:
            ConfigError: there are too few questions for so many rounds.
        """
        assert self.trainer is not None
        count = self.questions_per_iteration
        if len(self._pool) < (round + 2) * count:
            raise ConfigError(
                f"{len(self._pool)} questions are too few for {round + 1} rounds that may replace {count} of {count}: "
                "lower resample_rounds or questions_per_iteration"
            )
        chosen = {question.id for question in self.chosen(iteration)}
        rest = [question for question in self._pool if question.id not in chosen]
        rest.sort(key=lambda question: stable_hash(self.seed, "spares", iteration, question.id))
        return rest[round * count : (round + 1) * count][self.trainer.global_rank :: self.trainer.world_size]

    def _order(self, number: int) -> list[Question]:
        """The questions in the order of one round; an iteration across two rounds gets no question twice."""
        while len(self._orders) <= number:
            r, size = len(self._orders), len(self._pool)
            begun = r * size % self.questions_per_iteration  # questions of its first iteration from the round before
            recent = {question.id for question in self._orders[-1][size - begun :]} if begun else set()
            order = sorted(self._pool, key=lambda q: (q.id in recent, stable_hash(self.seed, "questions", r, q.id)))
            self._orders.append(order)
        return self._orders[number]

    def fill(self, episodes: Sequence[Sequence[PackedSequence]]) -> None:
        """Replace the buffer by the training sequences of an iteration's episodes of this rank, group by group.

        An episode may have any number of sequences, none where it trains nothing.
        """
        assert self._buffer is not None
        self._buffer.fill(episodes)

    @property
    def mid_iteration(self) -> bool:
        """Whether a part of the buffer was served and a part was not."""
        return self._buffer is not None and 0 < self._buffer.served < len(self._buffer)

    def train_dataloader(self) -> IterationBuffer:
        assert self.trainer is not None
        self._buffer = IterationBuffer(
            self.updates,
            self.batch_size // self.micro_batch,
            self.micro_batch // self.trainer.world_size,
            self.micro_tokens,
        )
        return self._buffer


class IterationBuffer:
    """A loader of a fixed length over episodes that change with each iteration; it rewinds when iterated again.

    Args:
        updates: optimiser steps an iteration.
        batches: micro-batches an update.
        size: episodes a micro-batch, of this rank; their sequences are spread evenly over all micro-batches.
        tokens: padded tokens a micro-batch, in place of a size; the last ones of an update may be empty.
    """

    def __init__(self, updates: int, batches: int, size: int, tokens: int | None = None) -> None:
        self.updates, self.batches, self.size, self.tokens = updates, batches, size, tokens
        self.served = 0
        self._episodes: list[Sequence[PackedSequence]] = []

    def __len__(self) -> int:
        return self.updates * self.batches

    def fill(self, episodes: Sequence[Sequence[PackedSequence]]) -> None:
        """Replace the buffer's episodes."""
        if len(episodes) != len(self) * self.size:
            raise ValueError(f"{len(episodes)} episodes for a buffer of {len(self) * self.size}")
        self._episodes, self.served = list(episodes), 0

    def __iter__(self) -> Iterator[SequenceBatch]:
        if not self._episodes:
            raise RuntimeError("the buffer is empty: QuestionData needs a callbacks.rollout:RolloutCallback")
        share = self.batches * self.size
        for start in range(0, len(self._episodes), share):
            for rows in self._cut(self._episodes[start : start + share]):
                self.served += 1
                yield collate(rows or [PackedSequence.untrained()])

    def _cut(self, update: list[Sequence[PackedSequence]]) -> list[list[PackedSequence]]:
        """The sequences of each micro-batch of an update, those of similar length together."""
        if self.tokens is None:
            owned: dict[str, list[PackedSequence]] = {}
            for row in (row for episode in update for row in episode):
                owned.setdefault(row.owner, []).append(row)
            parts = [_shares(sorted(rows, key=len, reverse=True), self.batches) for rows in owned.values()]
            return [[row for part in parts for row in part[number]] for number in range(self.batches)]
        cut = by_length(update, length=_longest, rows=len, tokens=self.tokens)
        parts = [[row for episode in episodes for row in episode] for episodes in cut]
        return parts + [[] for _ in range(self.batches - len(parts))]


def _longest(rows: Sequence[PackedSequence]) -> int:
    """Tokens of the longest of an episode's sequences."""
    return max(map(len, rows), default=0)


def _shares(rows: list[PackedSequence], count: int) -> list[list[PackedSequence]]:
    """Rows in their order in so many lists of one length; the last may have fewer, or none."""
    size = math.ceil(len(rows) / count)
    return [rows[number * size : (number + 1) * size] for number in range(count)]
