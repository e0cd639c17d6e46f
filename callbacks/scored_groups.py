"""The episodes of an iteration on one rank: sampled group by group, scored, flat groups sampled anew (DAPO)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from lightning.pytorch import LightningModule
from torch import Tensor

from common.costs import counted, tokens_in
from common.errors import UserError
from datamodules.question_data import QuestionData
from envs.interfaces import RewardContext, Sampler
from envs.retrieval import RetrievalEnvironment
from envs.rollout import Sampling
from envs.types import Episode, Question
from modules.episode_tensors import credit_inputs
from modules.functional.credit_inputs import MissingInput
from modules.policy_gradient import PolicyGradient
from modules.rewards.terms import Scores, Term, combine, replaced


class ScoringError(UserError):
    """Nothing of an iteration could be scored: there is nothing to learn from."""


@dataclass(frozen=True, slots=True)
class ScoredGroups:
    """A rank's episodes of an iteration, group by group, their rewards, and the episodes thrown away on the way."""

    episodes: list[Episode]
    scores: Scores
    thrown_away: list[Episode] = field(default_factory=list)

    def with_fresh(self, places: Sequence[int], fresh: ScoredGroups) -> ScoredGroups:
        """These groups with those at some places replaced by others, in their order."""
        size = len(fresh.episodes) // len(places)
        rows = [place * size + sample for place in places for sample in range(size)]
        episodes, thrown_away = list(self.episodes), self.thrown_away + [self.episodes[row] for row in rows]
        for row, episode in zip(rows, fresh.episodes, strict=True):
            episodes[row] = episode
        return ScoredGroups(episodes, replaced(self.scores, rows, fresh.scores), thrown_away)


@dataclass(slots=True)
class GroupSampling:
    """Samples and scores a rank's groups, with no collective call: ranks take different numbers of turns.

    Attributes:
        seconds: by tag, what the latest iteration took.
        reward_tokens: what its rewards sampled.
    """

    environment: RetrievalEnvironment
    sampler: Sampler
    sampling: Sampling
    terms: Mapping[str, Term]
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    reward_tokens: int = 0

    def groups(
        self, module: PolicyGradient, data: QuestionData, iteration: int, context: RewardContext
    ) -> ScoredGroups:
        """The episodes of this rank's questions and their rewards.

        Where the module asks, flat groups are sampled anew, in each round with other questions; those that are flat
        after the last round stay. Only new groups are scored in a round, so no reward is asked twice. Source: dynamic
        sampling of DAPO, arXiv 2503.14476, which continues until no group is flat.

        Raises:
            ScoringError: a reward scored no episode, or all episodes failed.
        """
        self.seconds.clear()
        self.reward_tokens = 0

        def sampled(questions: list[Question]) -> ScoredGroups:
            settings = {"group_size": data.group_size, "seed": data.seed, "iteration": iteration}
            with self.timed("time/rollout"):
                episodes = self.sampling(self.environment, self.sampler, questions, **settings)
            before = tokens_in(counted(self.sampler))
            with self.timed("time/rewards"):
                scores = combine(self.terms, episodes, context)
            self.reward_tokens += tokens_in(counted(self.sampler)) - before
            return ScoredGroups(episodes, scores)

        groups = sampled(data.share(iteration))
        _check_scored(groups, iteration)
        for number in range(module.resample_rounds):
            inputs = credit_inputs(groups.episodes, groups.scores, data.group_size)
            flat = module.flat_groups(replace(inputs, sum_over_ranks=_no_other_ranks))
            if not flat:
                break
            spares = data.spares(iteration, number)
            groups = groups.with_fresh(flat, sampled([spares[place] for place in flat]))
        if groups.thrown_away:
            _check_scored(groups, iteration)
        return groups

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time of the block to `seconds`."""
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start


@contextmanager
def evaluating(module: LightningModule) -> Iterator[None]:
    """In evaluation mode: no dropout, no gradient checkpointing."""
    module.eval()
    try:
        yield
    finally:
        module.train()


def _no_other_ranks(sums: Tensor) -> Tensor:
    """Stands in for a sum over ranks while they sample, when no collective call is allowed."""
    raise MissingInput("zero_variance: resample needs credit that compares only the episodes of a group")


def _check_scored(groups: ScoredGroups, iteration: int) -> None:
    """Raise if a reward scored no episode of this rank: silently dropping a reward would change the objective."""
    episodes, scores, where = groups.episodes, groups.scores, f"iteration {iteration}"
    finished = [episode for episode in episodes if episode.status != "error"]
    if not finished:
        raise ScoringError(f"{where}: all {len(episodes)} episodes failed; the first: {episodes[0].error}")
    if not bool(scores.step_mask_BS.any()):
        longest = max(len(episode.prompt_ids) for episode in episodes)
        raise ScoringError(f"{where}: no prompt leaves room for a turn (longest {longest} tokens): raise limits")
    for name, values in scores.breakdown.items():
        values_N = values[scores.step_mask_BS] if values.dim() == 2 else values
        if len(values_N) and bool(values_N.isnan().all()):
            reason = scores.failures.get(name, "it gave no number")
            raise ScoringError(f"{where}: reward {name} scored none of {len(finished)} episodes: {reason}")
