"""HiPRAG's reward: the answer, the format and, where both are right, the share of steps that searched as they should.

R = A·(1 - λ_f) + λ_f·F + λ_p·A·F·N_corr/N over *all* N steps; N_corr are those neither over- nor under-searched.
Source: HiPRAG (arXiv 2510.07794); its released code divides by the search steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from common.answers import cover_match, exact_match
from common.costs import JUDGE_CALLS
from common.errors import ConfigError
from envs.interfaces import RewardContext
from envs.retrieval import RetrievalEnvironment
from envs.search_steps import searches, statements
from envs.token_ids import require_same
from envs.types import Episode
from modules.rewards.hiprag import hierarchical
from modules.rewards.terms import IterationReward, Total
from systems.hiprag.checks import Verifier, answers_alone, claims_of_searches, over_search_checks, under_search_checks

_CORRECT = {"cover": cover_match, "exact": exact_match}


class HierarchicalReward(IterationReward):
    """HiPRAG's reward as a component of level `outcome`; steps are checked only in right and well-formed episodes.

    A step without a verdict never raises a reward: it counts as a step and not as a good one. `exclude` leaves it out
    of both, as the paper's parser does, which can raise one. Where more than `most_unjudged` of the checks of an
    iteration, on all ranks, have no verdict, none of its episodes gets a bonus (`settle`).

    It logs the shares of searches and of statements that were found wrong (`over_search`, `under_search`), of checks
    without a verdict (`unjudged`), of episodes that are `correct` and `well_formed`, and queries sent to the policy an
    episode (`answers_alone`). A check counts as a call of a judge.

    Args:
        over_search: compares the policy's own answer to a query with what the step concludes; None: not checked.
        under_search: says whether a statement holds; None: not checked.
        alone: where the policy answers a query, without passages; needed for `over_search`.
        correct: A, by cover match (the paper's) or exact match.
        denominator: all steps, or the search steps alone, as in the released code: there a statement can earn a bonus
            beyond λ_p, and an episode without a search gets all of it.

    Raises:
        ConfigError: a setting is out of range, or `alone` is missing; on scoring, there is no policy to ask, or `alone`
            has another tokenizer than the rollout.
    """

    def __init__(
        self,
        *,
        over_search: Verifier | None = None,
        under_search: Verifier | None = None,
        alone: RetrievalEnvironment | None = None,
        lambda_f: float = 0.2,
        lambda_p: float = 0.4,
        correct: Literal["cover", "exact"] = "cover",
        denominator: Literal["steps", "searches"] = "steps",
        unjudged: Literal["lower_bound", "exclude"] = "lower_bound",
        most_unjudged: float = 0.2,
    ) -> None:
        if not 0 <= lambda_f <= 1 or lambda_p < 0 or not 0 <= most_unjudged <= 1:
            settings = f"lambda_f {lambda_f}, lambda_p {lambda_p}, most_unjudged {most_unjudged}"
            raise ConfigError(f"{settings}: lambda_p must not be negative, the others must lie in [0, 1]")
        if over_search is not None and alone is None:
            raise ConfigError("over_search needs `alone`, an environment in which the policy answers without passages")
        self._over, self._under, self._alone = over_search, under_search, alone
        self._lambda_f, self._lambda_p, self._match = lambda_f, lambda_p, _CORRECT[correct]
        self._of_searches, self._exclude = denominator == "searches", unjudged == "exclude"
        self._most_unjudged = most_unjudged

    def __call__(self, episodes: Sequence[Episode], context: RewardContext) -> Tensor:
        """`[B]`: the reward of each episode."""
        right_B = torch.tensor([float(self._match(episode.answer, episode.question.answers)) for episode in episodes])
        formed_B = torch.tensor([float(context.protocol.valid(episode)) for episode in episodes])
        judged = torch.nonzero(right_B * formed_B).flatten().tolist()
        chosen = [episodes[number] for number in judged]
        asked = self._answers_alone(chosen, context)
        found = self._checked(chosen, asked, context)
        good_B, steps_B = torch.zeros_like(right_B), torch.zeros_like(right_B)
        for number, steps in zip(judged, found, strict=True):
            good_B[number], steps_B[number] = self._counts(steps)
        context.log("correct", right_B)
        context.log("well_formed", formed_B)
        context.log("answers_alone", torch.full_like(right_B, len(asked) / max(len(episodes), 1)))
        return hierarchical(right_B, formed_B, good_B, steps_B, lambda_f=self._lambda_f, lambda_p=self._lambda_p)

    def settle(
        self, episodes: Sequence[Episode], values_B: Tensor, logged: Mapping[str, Tensor], total: Total
    ) -> Tensor:
        """`[B]`: without a bonus, which is what is above 1, where too many checks of the iteration have no verdict."""
        unjudged_N = logged.get("unjudged", torch.zeros(0))
        failed, checks = total(torch.tensor([float(unjudged_N.sum()), float(len(unjudged_N))])).tolist()
        return values_B.clamp(max=1.0) if failed > self._most_unjudged * checks else values_B

    def _answers_alone(self, episodes: Sequence[Episode], context: RewardContext) -> dict[str, str]:
        """The current policy's answers to the queries of these episodes, where searches are checked."""
        if self._over is None or self._alone is None:
            return {}
        if context.sampler is None:
            raise ConfigError(
                "HierarchicalReward asks the current policy about its searches: it works in training alone"
            )
        own, other = (protocol.codec.tokenizer for protocol in (self._alone.protocol, context.protocol))
        require_same(own, other, "`alone` and the rollout")
        queries = [episode.steps[step].query for episode in episodes for step in claims_of_searches(episode)]
        return answers_alone(queries, context.sampler, self._alone, context.alone)

    def _checked(self, episodes: Sequence[Episode], asked: Mapping[str, str], context: RewardContext) -> list[_Checked]:
        """The verdicts on all steps of these episodes, each kind of check sent to its verifier at once."""
        over = [check for episode in episodes for check in over_search_checks(episode, asked)] if self._over else []
        under = [check for episode in episodes for check in under_search_checks(episode)] if self._under else []
        same = self._over.verify(over) if self._over else []
        holds = self._under.verify(under) if self._under else []
        context.counts[JUDGE_CALLS] += len(over) + len(under)
        context.log("over_search", _numbers(same))
        context.log("under_search", 1 - _numbers(holds))
        # A query that the policy could not be asked has no verdict either.
        unasked = [
            (episode, step) for episode in episodes if self._over
            for step in claims_of_searches(episode) if episode.steps[step].query not in asked
        ]  # fmt: skip
        context.log("unjudged", _numbers([*same, *holds, *[None] * len(unasked)]).isnan())
        fine = [(check, None if verdict is None else not verdict) for check, verdict in zip(over, same, strict=True)]
        fine += zip(under, holds, strict=True)
        verdicts = [(check.episode, check.step, verdict) for check, verdict in fine]
        verdicts += [(episode, step, None) for episode, step in unasked]
        return [_Checked(one, {step: verdict for of, step, verdict in verdicts if of is one}) for one in episodes]

    def _counts(self, checked: _Checked) -> tuple[int, int]:
        """Good steps and all steps of an episode. A step that is not checked is good."""
        steps = [step for step, _ in searches(checked.episode.steps)] + statements(checked.episode.steps)
        fine = [checked.verdicts.get(step, True) for step in steps]
        count = len(fine) - (fine.count(None) if self._exclude else 0)
        if self._of_searches:
            count = sum(bool(checked.episode.steps[step].query) for step in steps)
            return (fine.count(True), count) if count else (1, 1)
        return fine.count(True), count


@dataclass(frozen=True, slots=True)
class _Checked:
    """An episode and the verdict on each of its steps that was checked: whether it is as it should be."""

    episode: Episode
    verdicts: dict[int, bool | None]


def _numbers(verdicts: Sequence[bool | None]) -> Tensor:
    """`[N]`: 1, 0, or NaN without a verdict."""
    return torch.tensor([float("nan") if verdict is None else float(verdict) for verdict in verdicts])
