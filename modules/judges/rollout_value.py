"""Labels without a judge: the policy's rate of right answers from a step on, estimated by rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

from common.answers import exact_match
from common.costs import counted
from common.errors import ConfigError
from common.progress import progress_bar
from common.seeds import stable_hash
from envs.interfaces import Sampler
from envs.pairs import Candidate
from envs.retrieval import RetrievalEnvironment
from envs.rollout import play_out
from envs.types import Episode


class RolloutValue:
    """A `StepJudge` that plays every step on to the end, several times, and looks at the answers alone.

    `soft` is the share of right answers, `hard` is 1 where one answer at least is right and else 0. A step that ends
    its episode is worth its own answer. It cannot separate luck from logic: a wrong step from which the policy recovers
    is worth something. Source: Math-Shepherd (arXiv 2312.08935), Eqs 3 and 4.

    Rollouts that failed are left out and counted (`rollouts_failed`); a step all of whose rollouts failed has no label.
    Random numbers come from `seed` and the step, so a step's label does not depend on which others are labelled.

    Args:
        environment: where episodes are played on.
        sampler: the policy's; it has to sample, or all rollouts of a step are one.
        rollouts: of a step (N).
        estimate: `soft` or `hard`.
        pool: episodes in flight.
        seed: of the rollouts.

    Raises:
        ConfigError: a number is out of range; the sampler is greedy, or does not fit the environment.
    """

    def __init__(
        self,
        environment: RetrievalEnvironment,
        sampler: Sampler,
        *,
        rollouts: int = 4,
        estimate: Literal["soft", "hard"] = "soft",
        pool: int = 64,
        seed: int = 0,
    ) -> None:
        if min(rollouts, pool) < 1:
            raise ConfigError(f"rollouts {rollouts}, pool {pool}: each must be at least 1")
        if rollouts > 1 and not sampler.temperature:
            raise ConfigError(f"{rollouts} rollouts of a greedy sampler are all the same: give it a temperature")
        environment.check(sampler)
        self.environment, self.sampler, self.rollouts = environment, sampler, rollouts
        self.estimate, self.pool, self.seed = estimate, pool, seed
        self._failed = 0

    @property
    def counts(self) -> Counter[str]:
        """Counts of the sampler, and failed rollouts."""
        failed = Counter({"rollouts_failed": self._failed}) if self._failed else Counter[str]()
        return counted(self.sampler) + failed

    def label(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """The estimated share of right answers from each step on.

        Raises:
            RetrievalError: the retriever failed too often in a row.
        """
        forks = [self._forks(candidate.episode) for candidate in candidates]
        playing = [episode for of_step in forks for episode in of_step]
        with progress_bar(len(playing), "rollouts", unit="ep") as bar:
            play_out(self.environment, self.sampler, playing, seed=self.seed, pool=self.pool, tick=bar.update)
        self._failed += sum(episode.status == "error" for episode in playing)
        return [self._value([one for one in of_step if one.status != "error"]) for of_step in forks]

    def _forks(self, episode: Episode) -> list[Episode]:
        """The episodes that continue a step; itself alone where it ends its episode."""
        if episode.status is not None:
            return [episode]
        own = [stable_hash(self.seed, "rollout", episode.turns[-1].uid, number) for number in range(self.rollouts)]
        return [
            replace(episode, turns=list(episode.turns), sample=number, steps=(), truncations=Counter())
            for number in own
        ]

    def _value(self, played: Sequence[Episode]) -> float | None:
        if not played:
            return None
        right = [exact_match(episode.answer, episode.question.answers) for episode in played]
        return max(right) if self.estimate == "hard" else fmean(right)
