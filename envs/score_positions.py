"""Score positions: where in an episode's own token ids a reward model scores its steps.

A causal model has seen only a step's past at its score position. So one forward pass over an episode scores all its
steps, and where one sequence begins another, a pass over the longer one is enough.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from envs.types import Episode


@dataclass(frozen=True, slots=True)
class ScorePosition:
    """A step in a token sequence.

    Attributes:
        step: its index in the episode.
        spans: its policy tokens, as half-open ranges.
        observed: the last token of its observation; its last policy token where nothing was observed.
        kind: its kind.
    """

    step: int
    spans: tuple[tuple[int, int], ...]
    observed: int
    kind: str


@dataclass(frozen=True, slots=True)
class ScoredSequence:
    """Token ids, and the score positions in them."""

    ids: array[int]
    positions: tuple[ScorePosition, ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(slots=True)
class ScoreBatch:
    """B sequences, padded on the right to T tokens, with P score positions.

    Attributes:
        ids_BT: `[B, T]` int64.
        position_index_BT: `[B, T]` int64, the score position that a policy token belongs to, -1 elsewhere.
        row_P: `[P]` int64, the row of each score position.
        action_P: `[P]` int64, the last policy token of its step.
        observed_P: `[P]` int64, the last token of its step's observation.
        step_P: `[P]` int64, the index of its step in the episode.
        kinds: `[P]`, the kind of its step.
    """

    ids_BT: Tensor
    position_index_BT: Tensor
    row_P: Tensor
    action_P: Tensor
    observed_P: Tensor
    step_P: Tensor
    kinds: tuple[str, ...]


@dataclass(slots=True)
class PairBatch:
    """N pairs of score positions in one batch.

    Attributes:
        sequences: the batch.
        chosen_N, rejected_N: `[N]` int64, the score positions of the better and of the worse step.
        number_N: `[N]` int64, the numbers of the pairs in their file.
    """

    sequences: ScoreBatch
    chosen_N: Tensor
    rejected_N: Tensor
    number_N: Tensor

    def __len__(self) -> int:
        return len(self.chosen_N)


def scored_sequences(episode: Episode) -> list[ScoredSequence]:
    """The sequences of an episode with the score positions of its steps, those of untrained turns included.

    A step is scored in the sequence of its last turn, and only its policy tokens in that sequence count. The last step
    of a turn is scored after the turn's observation. A step without policy tokens has no score position.
    """
    trainable = replace(episode, turns=[replace(turn, trainable=True) for turn in episode.turns])
    last_of_turn = {step.spans[-1][0]: index for index, step in enumerate(episode.steps) if step.spans}
    scored: list[ScoredSequence] = []
    for sequence in trainable.sequences():
        begins, ends = _turn_bounds(episode, sequence.turns)
        positions = []
        for index, step in enumerate(episode.steps):
            if not step.spans or (turn := step.spans[-1][0]) not in begins:
                continue
            spans = tuple((begins[t] + a, begins[t] + b) for t, a, b in step.spans if t in begins and a < b)
            if spans:
                observed = ends[turn] - 1 if last_of_turn[turn] == index else spans[-1][1] - 1
                positions.append(ScorePosition(index, spans, observed, step.kind))
        scored.append(ScoredSequence(array("i", sequence.ids), tuple(positions)))
    return scored


def _turn_bounds(episode: Episode, turns: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
    """Start of each turn's action and (exclusive) end of its observation, in the sequence of these turns."""
    begins, ends = {}, {}
    context = episode.turns[turns[0]].context_ids
    place = len(episode.prompt_ids if context is None else context)
    for number in turns:
        turn = episode.turns[number]
        begins[number] = place + len(turn.opening_ids)
        place = ends[number] = begins[number] + len(turn.action_ids) + len(turn.observation_ids)
    return begins, ends


def collate_scored(sequences: Sequence[ScoredSequence]) -> ScoreBatch:
    """Pad sequences into one batch; score positions are numbered row by row."""
    ids = [torch.tensor(sequence.ids, dtype=torch.long) for sequence in sequences]
    position_index_BT = torch.full((len(ids), max(map(len, ids))), -1)
    places = []
    for row, sequence in enumerate(sequences):
        for position in sequence.positions:
            for start, end in position.spans:
                position_index_BT[row, start:end] = len(places)
            places.append((row, position.spans[-1][1] - 1, position.observed, position.step))
    row_P, action_P, observed_P, step_P = torch.tensor(places, dtype=torch.long).reshape(-1, 4).T.contiguous()
    ids_BT = pad_sequence(ids, batch_first=True, padding_value=0)
    return ScoreBatch(ids_BT, position_index_BT, row_P, action_P, observed_P, step_P, tuple(kinds_of(sequences)))


def kinds_of(sequences: Iterable[ScoredSequence]) -> Iterator[str]:
    """The kinds of the steps at the score positions of sequences, in order."""
    return (position.kind for sequence in sequences for position in sequence.positions)


def merge_prefixes(sequences: Sequence[ScoredSequence]) -> tuple[list[ScoredSequence], list[int]]:
    """Move the score positions of a sequence that begins another one, or equals it, to that one.

    Returns:
        The remaining sequences, and for every score position of `sequences`, in order, its number in `collate_scored`
        of the remaining ones. Equal score positions become one; a sequence with one that overlaps another otherwise
        stays as it is: two contexts may read alike after different steps.
    """
    order = sorted(range(len(sequences)), key=lambda index: sequences[index].ids, reverse=True)
    kept: list[array[int]] = []
    row_of = [0] * len(sequences)
    for index in order:  # in this order a sequence follows those that it begins
        ids = sequences[index].ids
        if not kept or kept[-1][: len(ids)] != ids:
            kept.append(ids)
        row_of[index] = len(kept) - 1
    rows: list[dict[ScorePosition, None]] = [{} for _ in kept]
    for index, sequence in enumerate(sequences):
        if any(_clash(own, other) for own in sequence.positions for other in rows[row_of[index]]):
            row_of[index] = len(kept)
            kept.append(sequence.ids)
            rows.append({})
        rows[row_of[index]].update(dict.fromkeys(sequence.positions))
    number = {(row, place): n for n, (row, place) in enumerate((r, p) for r, places in enumerate(rows) for p in places)}
    merged = [ScoredSequence(ids, tuple(row)) for ids, row in zip(kept, rows, strict=True)]
    numbers = [
        number[row_of[index], position] for index, sequence in enumerate(sequences) for position in sequence.positions
    ]
    return merged, numbers


def _clash(one: ScorePosition, other: ScorePosition) -> bool:
    """Whether two positions share tokens without being the same: a row has one position for each token."""
    overlap = any(a < d and c < b for a, b in one.spans for c, d in other.spans)
    return one != other and overlap


def collate_pairs(pairs: Sequence[tuple[int, ScoredSequence, ScoredSequence]]) -> PairBatch:
    """Pairs (number, chosen, rejected) as a batch, each side with one score position; shared tokens are run once."""
    merged, numbers = merge_prefixes([sequence for _, *both in pairs for sequence in both])
    chosen_N, rejected_N = torch.tensor(numbers).reshape(-1, 2).T
    return PairBatch(collate_scored(merged), chosen_N, rejected_N, torch.tensor([n for n, *_ in pairs]))
