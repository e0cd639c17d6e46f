"""Where a reward model reads the steps of an episode: in the episode's own token ids, once a step.

A causal model has seen nothing but a step's own past at its reading position, so one pass over an episode reads all its
steps, and of two sequences that begin alike only the longer one need be read.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from envs.types import Episode


@dataclass(frozen=True, slots=True)
class Reading:
    """A step in a token sequence: `spans` of its policy tokens, `observed` the last token of its observation.

    Ends of spans are exclusive; `observed` is the last policy token where nothing was observed.
    """

    step: int
    spans: tuple[tuple[int, int], ...]
    observed: int


@dataclass(frozen=True, slots=True)
class ReadSequence:
    """Token ids, and the steps that are read in them."""

    ids: array[int]
    readings: tuple[Reading, ...]


@dataclass(slots=True)
class ReadBatch:
    """B sequences, padded on the right to T, with R readings.

    Attributes:
        ids_BT: `[B, T]` int64.
        reading_BT: `[B, T]` int64, the reading that a policy token belongs to, -1 elsewhere.
        row_R: `[R]` int64, the row of each reading.
        action_R: `[R]` int64, its last policy token.
        observed_R: `[R]` int64, the last token of its observation.
    """

    ids_BT: Tensor
    reading_BT: Tensor
    row_R: Tensor
    action_R: Tensor
    observed_R: Tensor


@dataclass(slots=True)
class PairBatch:
    """N pairs of readings of one batch; `number_N` are the numbers of the pairs in their file."""

    reads: ReadBatch
    chosen_N: Tensor
    rejected_N: Tensor
    number_N: Tensor

    def __len__(self) -> int:
        return len(self.chosen_N)


def read_sequences(episode: Episode) -> list[ReadSequence]:
    """The sequences of an episode with the readings of its steps, whether its turns are trained on or not.

    A step is read in the sequence that holds its last turn, and only its policy tokens in that one count; at the end
    of the observation if it is the last step of that turn. A step without policy tokens is not read.
    """
    shown = replace(episode, turns=[replace(turn, trainable=True) for turn in episode.turns])
    last_of_turn = {step.spans[-1][0]: index for index, step in enumerate(episode.steps) if step.spans}
    found: list[ReadSequence] = []
    for sequence in shown.sequences():
        begins, ends = _places(episode, sequence.turns)
        readings = []
        for index, step in enumerate(episode.steps):
            if not step.spans or (turn := step.spans[-1][0]) not in begins:
                continue
            spans = tuple((begins[t] + a, begins[t] + b) for t, a, b in step.spans if t in begins and a < b)
            if spans:
                observed = ends[turn] - 1 if last_of_turn[turn] == index else spans[-1][1] - 1
                readings.append(Reading(index, spans, observed))
        found.append(ReadSequence(array("i", sequence.ids), tuple(readings)))
    return found


def _places(episode: Episode, turns: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
    """Where the action of each turn begins in the sequence of these turns, and where its observation has ended."""
    begins, ends = {}, {}
    context = episode.turns[turns[0]].context_ids
    place = len(episode.prompt_ids if context is None else context)
    for number in turns:
        turn = episode.turns[number]
        begins[number] = place + len(turn.opening_ids)
        place = ends[number] = begins[number] + len(turn.action_ids) + len(turn.observation_ids)
    return begins, ends


def collate_reads(sequences: Sequence[ReadSequence], pad_id: int = 0) -> ReadBatch:
    """Pad sequences into one batch; readings are numbered row by row."""
    ids = [torch.tensor(sequence.ids, dtype=torch.long) for sequence in sequences]
    reading_BT = torch.full((len(ids), max(map(len, ids))), -1)
    places = []
    for row, sequence in enumerate(sequences):
        for reading in sequence.readings:
            for start, end in reading.spans:
                reading_BT[row, start:end] = len(places)
            places.append((row, reading.spans[-1][1] - 1, reading.observed))
    row_R, action_R, observed_R = torch.tensor(places, dtype=torch.long).reshape(-1, 3).T.contiguous()
    ids_BT = pad_sequence(ids, batch_first=True, padding_value=pad_id)
    return ReadBatch(ids_BT, reading_BT, row_R, action_R, observed_R)


def merge_prefixes(sequences: Sequence[ReadSequence]) -> tuple[list[ReadSequence], list[int]]:
    """Put readings of sequences that begin another one, or equal it, into that one.

    Returns:
        The sequences that are left, and for every reading of `sequences`, one after another, its number when
        `collate_reads` numbers those that are left. Readings at the same places are one.
    """
    order = sorted(range(len(sequences)), key=lambda index: sequences[index].ids, reverse=True)
    kept: list[array[int]] = []
    home = [0] * len(sequences)
    for index in order:  # a sequence comes right after those that it begins
        ids = sequences[index].ids
        if not kept or kept[-1][: len(ids)] != ids:
            kept.append(ids)
        home[index] = len(kept) - 1
    held: list[dict[tuple[tuple[tuple[int, int], ...], int], Reading]] = [{} for _ in kept]
    for index, sequence in enumerate(sequences):
        for reading in sequence.readings:
            held[home[index]].setdefault((reading.spans, reading.observed), reading)
    number = {(row, key): n for n, (row, key) in enumerate((row, key) for row, keys in enumerate(held) for key in keys)}
    merged = [ReadSequence(ids, tuple(readings.values())) for ids, readings in zip(kept, held, strict=True)]
    numbers = [
        number[home[index], (reading.spans, reading.observed)]
        for index, sequence in enumerate(sequences)
        for reading in sequence.readings
    ]
    return merged, numbers


def collate_pairs(pairs: Sequence[tuple[int, ReadSequence, ReadSequence]], pad_id: int = 0) -> PairBatch:
    """Pairs (number, chosen, rejected) of sequences with one reading each as a batch; what they share is read once."""
    merged, numbers = merge_prefixes([sequence for _, *both in pairs for sequence in both])
    chosen_N, rejected_N = torch.tensor(numbers).reshape(-1, 2).T
    return PairBatch(collate_reads(merged, pad_id), chosen_N, rejected_N, torch.tensor([n for n, *_ in pairs]))
