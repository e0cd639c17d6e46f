"""From finished episodes and their advantages to the sequences that train, with an advantage for every token."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from envs.packing import PackedSequence, pack
from envs.types import Episode
from modules.functional.advantages import per_token
from modules.training import TrainingError


def step_lengths(episodes: Sequence[Episode], steps: int) -> Tensor:
    """Policy tokens of each step, `[B, S]` int64, 0 where an episode has no such step."""
    lengths_BS = torch.zeros((len(episodes), steps), dtype=torch.long)
    for row, episode in enumerate(episodes):
        for column, step in enumerate(episode.steps):
            lengths_BS[row, column] = sum(end - start for _, start, end in step.spans)
    return lengths_BS


def token_advantages(advantages: Tensor, lengths_BS: Tensor) -> Tensor:
    """`[B, T]`: an advantage for each policy token of an episode, in the order of its steps, 0 beyond the last.

    Args:
        advantages: `[B, S]`, the same for every token of a step, or `[B, T]` already.
        lengths_BS: `[B, S]` policy tokens of each step.

    Raises:
        TrainingError: it is neither, or not finite.
    """
    (B, S), T = lengths_BS.shape, int(lengths_BS.sum(dim=1).max()) if lengths_BS.numel() else 0
    if advantages.shape not in ((B, S), (B, T)):
        shape = tuple(advantages.shape)
        raise TrainingError(f"the advantage gave {shape} numbers, not one a step {(B, S)} or one a token {(B, T)}")
    if lost := int((~advantages.isfinite()).sum()):
        raise TrainingError(
            f"{lost} of the advantage's {advantages.numel()} numbers are not finite: 0 is for the unknown"
        )
    if advantages.shape == (B, T) and T != S:
        return advantages
    rows = [values_S.repeat_interleave(count_S) for values_S, count_S in zip(advantages, lengths_BS, strict=True)]
    return torch.stack([torch.nn.functional.pad(row, (0, T - len(row))) for row in rows])


def step_means(advantages_BT: Tensor, lengths_BS: Tensor) -> Tensor:
    """The mean advantage of each step's tokens, `[B, T]` -> `[B, S]`, 0 for a step without any: to be shown."""
    sums_BS = torch.zeros(lengths_BS.shape)
    for sums_S, values_T, lengths_S in zip(sums_BS, advantages_BT, lengths_BS, strict=True):
        step_N = torch.arange(len(lengths_S)).repeat_interleave(lengths_S)
        sums_S.index_add_(0, step_N, values_T[: len(step_N)])
    return sums_BS / lengths_BS.clamp(min=1)


def training_rows(
    episodes: Sequence[Episode], kept: Sequence[bool], advantages_BT: Tensor, lengths_BS: Tensor
) -> list[list[PackedSequence]]:
    """The sequences of each episode, none of one that is not kept; a turn that several share trains in the first."""
    rows: list[list[PackedSequence]] = []
    seen: set[str] = set()
    for episode, keep, advantages_T, lengths_S in zip(episodes, kept, advantages_BT, lengths_BS, strict=True):
        rows.append([])
        if not keep:
            continue
        starts = (lengths_S.cumsum(dim=0) - lengths_S).tolist()
        taken: Counter[int] = Counter()  # tokens of each step so far; a step may go on in the next sequence
        for sequence in _untrained_twice(episode, seen).sequences():
            places = []
            for step in sequence.step_index:
                places.append(-1 if step < 0 else starts[step] + taken[step])
                taken[step] += 1
            packed = pack(sequence)
            packed.advantages_T = per_token(advantages_T[None], torch.tensor([places]))[0]
            rows[-1].append(packed)
    return rows


def _untrained_twice(episode: Episode, seen: set[str]) -> Episode:
    """The episode with turns that were seen before untrained; remembers those that are seen now."""
    shared = seen & {turn.uid for turn in episode.turns}
    seen.update(turn.uid for turn in episode.turns)
    if not shared:
        return episode
    turns = [dataclasses.replace(turn, trainable=turn.trainable and turn.uid not in shared) for turn in episode.turns]
    return dataclasses.replace(episode, turns=turns)
