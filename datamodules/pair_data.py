"""Pairs of steps as training data: in each, the better and the worse of two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import replace
from typing import TypeVar

from common.errors import DataError
from datamodules.records import pair_from_row
from datamodules.stage_data import Batch, StageData
from envs.pairs import Pair
from envs.score_positions import PairBatch, ScoredSequence, collate_pairs, kinds_of, scored_sequences
from envs.types import Episode

Side = TypeVar("Side", bound=Sized)
Sides = tuple[int, Side, Side]  # the pair's number in its file, its better and its worse side


class Pairs(StageData[Sides[Side], Batch]):
    """The pairs of a stage; a subclass says what is read of the two sides of one, and makes batches.

    An item is a pair; one with a side of more than `max_tokens` is left out.
    """

    records = "pairs.jsonl"
    nothing_left = "no pair to train on is left; search more questions or look at the judge"

    def sides(self, pair: Pair, where: str) -> tuple[Side, Side] | str:
        """The better and the worse side of a pair, or why it is left out; `where` names its row.

        Raises:
            DataError: the row makes no sense.
        """
        raise NotImplementedError

    def items(self) -> Iterator[tuple[str, Sides[Side]]]:
        for path in self.paths:
            rows = self.rows(path, pair_from_row, lambda pair: (pair.chosen, pair.rejected))
            for number, (where, pair) in enumerate(rows):
                sides = self.sides(pair, where)
                if not isinstance(sides, str) and max(map(len, sides)) > self.max_tokens:
                    sides = f"of more than {self.max_tokens} tokens"
                if isinstance(sides, str):
                    self.left_out[f"pairs {sides}"] += 1
                else:
                    yield pair.chosen.question.id, (number, *sides)

    def tokens(self, item: Sides[Side]) -> int:
        return len(item[1])


class PairData(Pairs[ScoredSequence, PairBatch]):
    """The pairs as a reward model reads them: in each, the last steps of two episodes of one question are compared.

    Held-out pairs are for the pair accuracy and for the calibration of the scores.
    """

    def sides(self, pair: Pair, where: str) -> tuple[ScoredSequence, ScoredSequence]:
        return last_score_position(pair.chosen, where), last_score_position(pair.rejected, where)

    def collate(self, items: Sequence[Sides[ScoredSequence]]) -> PairBatch:
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
