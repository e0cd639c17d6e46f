"""From finished episodes and their rewards to the inputs of a credit function, and from advantages to training rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from envs.packing import PackedSequence, pack
from envs.types import Episode
from modules.functional.credit import CreditInputs
from modules.rewards.terms import Scores
from modules.training import TrainingError


def credit_inputs(episodes: Sequence[Episode], scores: Scores, group_size: int) -> CreditInputs:
    """What a credit function reads of scored episodes; they come group by group."""
    S = scores.step_mask_BS.shape[1]
    kinds = [tuple(step.kind for step in episode.steps) for episode in episodes]
    return CreditInputs(
        step_rewards_BS=scores.step_BS,
        step_mask_BS=scores.step_mask_BS,
        outcome_B=scores.outcome_B,
        group_size=group_size,
        step_lengths_BS=step_lengths(episodes, S),
        step_kinds_BS=tuple(row + ("",) * (S - len(row)) for row in kinds),
        old_logps_BT=pad_sequence([_sampled_logps(episode) for episode in episodes], batch_first=True),
    )


def _sampled_logps(episode: Episode) -> Tensor:
    """`[T]`: log-probs of an episode's sampled tokens, in the order of its steps."""
    spans = [span for step in episode.steps for span in step.spans]
    return torch.tensor([logp for turn, start, end in spans for logp in episode.turns[turn].action_logps[start:end]])


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


def step_means(advantages_BT: Tensor, lengths_BS: Tensor) -> Tensor:
    """The mean advantage of each step's tokens, `[B, T]` -> `[B, S]`, for metrics; 0 for a step without tokens."""
    sums_BS = torch.zeros(lengths_BS.shape)
    for sums_S, values_T, lengths_S in zip(sums_BS, advantages_BT, lengths_BS, strict=True):
        step_N = torch.arange(len(lengths_S)).repeat_interleave(lengths_S)
        sums_S.index_add_(0, step_N, values_T[: len(step_N)])
    return sums_BS / lengths_BS.clamp(min=1)


def training_rows(
    episodes: Sequence[Episode], kept: Sequence[bool], advantages_BT: Tensor
) -> list[list[PackedSequence]]:
    """The training sequences of each episode with an advantage for every token; none where an episode is not kept.

    A turn that several kept episodes share is trained once, in the first of them, with the mean of the advantages that
    it has in all of them.

    Args:
        episodes: B finished episodes.
        kept: whether each of them trains.
        advantages_BT: `[B, T]`, as `token_advantages` gives them.
    """
    shared: dict[str, list[Tensor]] = {}  # by uid of a turn: its tokens' advantages in each episode that holds it
    for episode, keep, advantages_T in zip(episodes, kept, advantages_BT, strict=True):
        if keep:
            for turn, values_T in zip(episode.turns, _turn_advantages(episode, advantages_T), strict=True):
                shared.setdefault(turn.uid, []).append(values_T)
    means = {uid: torch.stack(values).mean(dim=0) for uid, values in shared.items()}
    trained: set[str] = set()
    return [
        _rows(mask_already_trained_turns(episode, trained), means) if keep else []
        for episode, keep in zip(episodes, kept, strict=True)
    ]


def mask_already_trained_turns(episode: Episode, trained: set[str]) -> Episode:
    """The episode with the turns whose uid is in `trained` masked; adds the uids of the others to `trained`."""
    known = trained & {turn.uid for turn in episode.turns}
    trained.update(turn.uid for turn in episode.turns)
    if not known:
        return episode
    turns = [dataclasses.replace(turn, trainable=turn.trainable and turn.uid not in known) for turn in episode.turns]
    return dataclasses.replace(episode, turns=turns)


def _turn_advantages(episode: Episode, advantages_T: Tensor) -> list[Tensor]:
    """The advantages of each turn's tokens; those of an episode come in the order of its steps."""
    rows = [torch.zeros(len(turn.action_ids)) for turn in episode.turns]
    place = 0
    for step in episode.steps:
        for turn, start, end in step.spans:
            rows[turn][start:end] = advantages_T[place : place + end - start]
            place += end - start
    return rows


def _rows(episode: Episode, means: dict[str, Tensor]) -> list[PackedSequence]:
    """The packed sequences of an episode, with the advantages of its turns by uid."""
    rows: list[PackedSequence] = []
    for sequence in episode.sequences():
        packed = pack(sequence)
        turns = [episode.turns[number] for number in sequence.turns]
        packed.advantages_T = torch.zeros(len(packed))
        packed.advantages_T[packed.loss_mask_T] = torch.cat([means[turn.uid] for turn in turns if turn.trainable])
        rows.append(packed)
    return rows
