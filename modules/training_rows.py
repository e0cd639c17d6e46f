"""Training rows of an iteration: advantages of steps or tokens, packed with the episodes that they belong to."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from envs.packing import CHANNELS, PackedSequence, pack
from envs.types import Episode
from modules.episode_tensors import by_turn
from modules.training import TrainingError


def token_advantages(advantages: Tensor, lengths_BS: Tensor) -> Tensor:
    """`[B, T]`: an advantage for each policy token of an episode, in the order of its steps, 0 beyond the last.

    Args:
        advantages: `[B, S]`, the same for every token of a step, or `[B, T]` already.
        lengths_BS: `[B, S]` policy tokens of each step.

    Raises:
        TrainingError: the shape is another, or a number is not finite.
    """
    (B, S), T = lengths_BS.shape, int(lengths_BS.sum(dim=1).max()) if lengths_BS.numel() else 0
    if advantages.shape not in ((B, S), (B, T)):
        shape = tuple(advantages.shape)
        raise TrainingError(f"credit gave advantages {shape}, not one a step {(B, S)} or one a token {(B, T)}")
    if lost := int((~advantages.isfinite()).sum()):
        raise TrainingError(f"{lost} of {advantages.numel()} advantages are not finite: give 0 where a reward is NaN")
    if advantages.shape == (B, T) and T != S:
        return advantages
    rows = [values_S.repeat_interleave(count_S) for values_S, count_S in zip(advantages, lengths_BS, strict=True)]
    return torch.stack([torch.nn.functional.pad(row, (0, T - len(row))) for row in rows])


def flat_groups(advantages_BT: Tensor, group_size: int) -> list[int]:
    """The numbers of the groups whose advantages are all 0: nothing is learnt from them."""
    some_Q = (advantages_BT != 0).reshape(-1, group_size * advantages_BT.shape[1]).any(dim=1)
    return (~some_Q).nonzero().flatten().tolist()


def step_means(advantages_BT: Tensor, lengths_BS: Tensor) -> Tensor:
    """The mean advantage of each step's tokens, `[B, T]` -> `[B, S]`, for metrics; 0 for a step without tokens."""
    sums_BS = torch.zeros(lengths_BS.shape)
    for sums_S, values_T, lengths_S in zip(sums_BS, advantages_BT, lengths_BS, strict=True):
        step_N = torch.arange(len(lengths_S)).repeat_interleave(lengths_S)
        sums_S.index_add_(0, step_N, values_T[: len(step_N)])
    return sums_BS / lengths_BS.clamp(min=1)


def training_rows(
    episodes: Sequence[Episode], kept: Sequence[bool], channels: Mapping[str, Tensor]
) -> list[list[PackedSequence]]:
    """The training sequences of each episode with its channels for every token; none where an episode is not kept.

    A turn that several kept episodes share is trained once, in the first of them, with the mean of each channel over
    all of them.

    Args:
        episodes: B finished episodes.
        kept: whether each of them trains.
        channels: by name out of `envs.packing.CHANNELS`: `[B, T]`, tokens in the order of the steps.

    Raises:
        ValueError: there is no such channel.
    """
    if unknown := set(channels) - set(CHANNELS):
        raise ValueError(f"no channel {min(unknown)!r} in a batch; there are {', '.join(CHANNELS)}")
    values_BCT = torch.stack(list(channels.values()), dim=1)
    shared: dict[str, list[Tensor]] = {}  # by uid of a turn: [C, n] of its tokens in each episode that holds it
    for episode, keep, values_CT in zip(episodes, kept, values_BCT, strict=True):
        if keep:
            for turn, values_CN in zip(episode.turns, by_turn(episode, values_CT), strict=True):
                shared.setdefault(turn.uid, []).append(values_CN)
    means = {uid: torch.stack(values).mean(dim=0) for uid, values in shared.items()}
    trained: set[str] = set()
    return [
        _rows(mask_already_trained_turns(episode, trained), list(channels), means) if keep else []
        for episode, keep in zip(episodes, kept, strict=True)
    ]


def in_places(
    episodes: Sequence[Episode], rows: Sequence[Sequence[PackedSequence]], group_size: int
) -> list[list[PackedSequence]]:
    """The rows of B episodes in `group_size` places a question, for a buffer whose size is fixed.

    A question may have any number of episodes, as a tree has paths: its first goes to its first place, and so on, from
    the start again where there are more than places.
    """
    places: dict[str, list[list[PackedSequence]]] = {}
    counts: Counter[str] = Counter()
    for episode, own in zip(episodes, rows, strict=True):
        of_question = places.setdefault(episode.question.id, [[] for _ in range(group_size)])
        of_question[counts[episode.question.id] % group_size].extend(own)
        counts[episode.question.id] += 1
    return [place for of_question in places.values() for place in of_question]


def mask_already_trained_turns(episode: Episode, trained: set[str]) -> Episode:
    """The episode with the turns whose uid is in `trained` masked; adds the uids of the others to `trained`."""
    known = trained & {turn.uid for turn in episode.turns}
    trained.update(turn.uid for turn in episode.turns)
    if not known:
        return episode
    turns = [dataclasses.replace(turn, trainable=turn.trainable and turn.uid not in known) for turn in episode.turns]
    return dataclasses.replace(episode, turns=turns)


def _rows(episode: Episode, names: Sequence[str], means: Mapping[str, Tensor]) -> list[PackedSequence]:
    """The packed sequences of an episode, with the channels `[C, n]` of its turns by uid."""
    rows: list[PackedSequence] = []
    for sequence in episode.sequences():
        packed = pack(sequence)
        trained = [episode.turns[number] for number in sequence.turns if episode.turns[number].trainable]
        values_CT = torch.zeros(len(names), len(packed))
        values_CT[:, packed.loss_mask_T] = torch.cat([means[turn.uid] for turn in trained], dim=1)
        packed.channels = dict(zip(names, values_CT, strict=True))
        rows.append(packed)
    return rows
