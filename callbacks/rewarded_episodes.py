"""Episodes of an iteration as rows to read, each step with its rewards and its advantage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any

from callbacks.rollout import Iteration
from envs.interfaces import Oracle
from envs.retrieval import RetrievalEnvironment
from envs.types import Episode, Step
from evaluation.scoring import score

Row = dict[str, Any]


def shown(iteration: Iteration, questions: int) -> Iterator[tuple[int, str]]:
    """The episodes kept of the first questions, by their place in the iteration, each with its label.

    Independent samples: the first with the best and the first with the worst reward, one where all are equal. Paths of
    a tree, which share turns: all.
    """
    rewards = iteration.scores.outcome_B.nan_to_num(-math.inf).tolist()
    groups = groupby(range(len(iteration.episodes)), key=lambda place: iteration.episodes[place].question.id)
    for places in (list(group) for _, group in islice(groups, questions)):
        if _share_turns([iteration.episodes[place] for place in places]):
            yield from ((place, f"path {number} of {len(places)}") for number, place in enumerate(places, 1))
        else:
            best, worst = (pick(places, key=rewards.__getitem__) for pick in (max, min))
            yield best, f"best of {len(places)}" if best != worst else f"one of {len(places)} alike"
            if best != worst:
                yield worst, f"worst of {len(places)}"


def rewarded_row(iteration: Iteration, place: int, environment: RetrievalEnvironment, oracle: Oracle | None) -> Row:
    """The row of predictions of one episode, with `outcome` and, of each step, `rewards`, `advantage` and `uid`.

    `rewards` and `outcome` have each reward before its weight, then their weighted sum as `reward`; None is unscored. A
    step that trains nobody, such as a frozen generator's, has no advantage.
    `uid` names the turn of a step: paths of a tree share it.
    """
    episode, scores = iteration.episodes[place], iteration.scores
    retrieves = environment.retriever is not None
    row = score(episode, valid=environment.protocol.valid(episode), retrieves=retrieves, oracle=oracle)
    row["sample"] = episode.sample
    outcomes, tables = (
        {name: table for name, table in scores.breakdown.items() if table.dim() == level} for level in (1, 2)
    )
    outcomes |= {"reward": scores.outcome_B} if outcomes else {}
    tables |= {"reward": scores.step_BS} if tables else {}
    row["outcome"] = {name: _known(float(values_B[place])) for name, values_B in outcomes.items()}
    for number, (step, shown_step) in enumerate(zip(episode.steps, row["steps"], strict=True)):
        if step.spans:
            shown_step["uid"] = episode.turns[step.spans[0][0]].uid
        if bool(scores.step_mask_BS[place, number]):
            shown_step["rewards"] = {name: _known(float(table[place, number])) for name, table in tables.items()}
            shown_step["advantage"] = (
                _known(float(iteration.advantages_BS[place, number])) if trains(episode, step) else None
            )
    return row


def _share_turns(episodes: Sequence[Episode]) -> bool:
    uids = [turn.uid for episode in episodes for turn in episode.turns]
    return len(set(uids)) < len(uids)


def _known(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def trains(episode: Episode, step: Step) -> bool:
    """Whether a step holds tokens that are trained: a frozen generator's does not."""
    return any(episode.turns[turn].trainable for turn, _, _ in step.spans)
