"""The truth of steps on real questions, by the dataset's own reasoning: which right answers rest on a wrong step."""

from __future__ import annotations

from itertools import pairwise

from common.answers import exact_match
from envs.types import Episode
from envs.world.oracle import Judgement
from modules.judges.gold_trail import GoldTrail, least


class GoldOracle:
    """An `Oracle` for questions with gold reasoning (MuSiQue, 2WikiMultiHopQA): true is what `GoldTrail` calls good.

    A right answer is *flawed* if a step before it is not true, such as a sub-answer that gold does not have or a query
    that misses its passage, and *unresolved* if a hop was never settled. It knows nothing of questions without gold
    reasoning, nor of formats that show nothing but the answer. Nor can it tell what a policy knows without a search, so
    whether a search is needless or a statement unfounded stays unknown.
    """

    def judge(self, episode: Episode) -> Judgement:
        """The truth of every step; None where gold does not say, the policy did not write it, or it was thrown away."""
        question, steps = episode.question, episode.steps
        unknown = (None,) * len(steps)
        silent = bool(steps) and all(step.kind == "answer" and step.claim is None for step in steps)
        if silent or question.gold is None or not question.gold.steps:
            return Judgement(unknown, None, None, None, unknown, unknown, unknown)
        trail = GoldTrail(question.gold, question.answers)
        valid: list[bool | None] = []
        left = [trail.open]
        for step in steps:
            good = None if step.dropped else least(trail.take(step))[0]
            valid.append(None if good is None or not step.spans else good and step.valid)
            left.append(trail.open)
        right, resolved = exact_match(episode.answer, question.answers) == 1, not trail.open
        return Judgement(
            tuple(valid),
            resolved,
            flawed=right and False in valid,
            unresolved=right and not resolved,
            needless=unknown,
            unfounded=unknown,
            settled=tuple(before - after for before, after in pairwise(left)),
            open=trail.open,
        )
