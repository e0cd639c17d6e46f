"""Log-probabilities of given tokens: many sequences in a few forward passes, without a cache and without sampling."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from common.errors import DataError
from modules.hidden_states import logprobs_of_states, read_states

_TOKENS = 2**14  # of one forward pass at most, padding among them; a longer row has a pass of its own
NOT_NUMBERS = "the policy gives log-probs that are not numbers: its weights or activations are NaN"


class Given(NamedTuple):
    """Tokens to be scored after a prefix of at least one token."""

    prefix: tuple[int, ...]
    ids: tuple[int, ...]


def require_scorable(given: Sequence[Given]) -> None:
    """Require tokens to score, and tokens before them.

    Raises:
        ValueError: there are none.
    """
    if not all(one.prefix and one.ids for one in given):
        raise ValueError("a request to be scored needs forced_ids, and tokens before them")


@torch.inference_mode()
def given_logps(
    model: PreTrainedModel, given: Sequence[Given], batch_size: int
) -> tuple[list[tuple[float, ...]], list[int]]:
    """Log-probs of every sequence's tokens at temperature 1, and how many tokens were read for each.

    Sequences that begin alike share a row where one holds all that is read of the other: alternatives of one token
    after the same prefix are read once, and counted for one of them.

    Args:
        model: a causal language model in evaluation mode.
        given: the sequences.
        batch_size: rows of one forward pass at most.

    Raises:
        DataError: a log-prob is not a number.
    """
    rows, row_of = shared_rows([one.prefix + one.ids[:-1] for one in given])
    of_row: list[list[int]] = [[] for _ in rows]
    for number, row in enumerate(row_of):
        of_row[row].append(number)
    logps: list[tuple[float, ...]] = [()] * len(given)
    for batch in _batches(rows, batch_size):
        members = [(place, number) for place, row in enumerate(batch) for number in of_row[row]]
        read = _read(model, [rows[row] for row in batch], [(place, given[number]) for place, number in members])
        parts = read.split([len(given[number].ids) for _, number in members])
        for (_, number), part in zip(members, parts, strict=True):
            logps[number] = tuple(part.tolist())
    if any(map(math.isnan, (logp for one in logps for logp in one))):
        raise DataError(NOT_NUMBERS)
    return logps, [len(rows[row]) * (of_row[row][0] == number) for number, row in enumerate(row_of)]


def shared_rows(sequences: Sequence[tuple[int, ...]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """The sequences that are no beginning of another, each once, and for every sequence the one that begins with it."""
    rows: list[tuple[int, ...]] = []
    row_of = [0] * len(sequences)
    # A sequence stands right before those that begin with it, so it is met right after them.
    for number in sorted(range(len(sequences)), key=sequences.__getitem__, reverse=True):
        one = sequences[number]
        if not rows or rows[-1][: len(one)] != one:
            rows.append(one)
        row_of[number] = len(rows) - 1
    return rows, row_of


def _batches(rows: Sequence[tuple[int, ...]], batch_size: int) -> Iterator[list[int]]:
    """Numbers of rows that are read together, the longest first."""
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
    while order:
        count = max(1, min(batch_size, _TOKENS // len(rows[order[0]])))
        yield order[:count]
        order = order[count:]


def _read(model: PreTrainedModel, rows: Sequence[tuple[int, ...]], members: Sequence[tuple[int, Given]]) -> Tensor:
    """Log-probs of all given tokens `[N]`, one member after the other; each lies in a row."""
    device = model.device
    ids_BT = pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(device)
    row_N = torch.tensor([row for row, one in members for _ in one.ids], device=device, dtype=torch.long)
    columns = (column for _, one in members for column in range(len(one.prefix) - 1, len(one.prefix + one.ids) - 1))
    column_N = torch.tensor(list(columns), device=device, dtype=torch.long)
    ids_N = torch.tensor([token for _, one in members for token in one.ids], device=device, dtype=torch.long)

    def read(hidden_BTD: Tensor) -> Tensor:
        return logprobs_of_states(model, hidden_BTD[row_N, column_N], ids_N)[0]

    return read_states(model, ids_BT, read).float().cpu()
