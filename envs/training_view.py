"""The training view of an episode: token ids, which of them are trained, and the step that each of these belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One training view of an episode; all tuples have length T.

    `loss_mask` is 1 on policy-sampled tokens of trainable turns; `step_index` is the step of each of those tokens and
    -1 elsewhere; `logps` are the stored log-probs, 0 elsewhere; `turns` the indices of the turns held.
    """

    ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    step_index: tuple[int, ...]
    logps: tuple[float, ...]
    turns: tuple[int, ...]


def training_sequences(
    prompt_ids: tuple[int, ...], turns: Sequence[Any], steps: Sequence[Any]
) -> list[TrainingSequence]:
    """One sequence where the context only grows, one a turn where it is re-rendered; none where nothing is trained.

    Args:
        prompt_ids: of the episode.
        turns: its `envs.types.Turn`s, which import this file.
        steps: its `envs.types.Step`s.
    """
    step_of = {
        (turn, position): index
        for index, step in enumerate(steps)
        for turn, start, end in step.spans
        for position in range(start, end)
    }
    rows: list[_Row] = []
    for number, turn in enumerate(turns):
        if turn.context_ids is not None or not rows:
            rows.append(_Row(prompt_ids if turn.context_ids is None else turn.context_ids))
        rows[-1].add(number, turn, step_of)
    return [row.frozen() for row in rows if 1 in row.loss_mask]


class _Row:
    """A training sequence under construction."""

    def __init__(self, context: tuple[int, ...]) -> None:
        self.ids: list[int] = list(context)
        self.loss_mask: list[int] = [0] * len(context)
        self.step_index: list[int] = [-1] * len(context)
        self.logps: list[float] = [0.0] * len(context)
        self.turns: list[int] = []

    def add(self, number: int, turn: Any, step_of: dict[tuple[int, int], int]) -> None:
        self.turns.append(number)
        self._untrained(turn.opening_ids)
        for position, (token, logp) in enumerate(zip(turn.action_ids, turn.action_logps, strict=True)):
            self.ids.append(token)
            self.loss_mask.append(int(turn.trainable))
            self.step_index.append(step_of.get((number, position), -1) if turn.trainable else -1)
            self.logps.append(logp if turn.trainable else 0.0)
        self._untrained(turn.observation_ids)

    def _untrained(self, ids: tuple[int, ...]) -> None:
        self.ids += ids
        self.loss_mask += [0] * len(ids)
        self.step_index += [-1] * len(ids)
        self.logps += [0.0] * len(ids)

    def frozen(self) -> TrainingSequence:
        return TrainingSequence(
            tuple(self.ids), tuple(self.loss_mask), tuple(self.step_index), tuple(self.logps), tuple(self.turns)
        )
