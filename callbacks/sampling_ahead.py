"""Sampling ahead: while an iteration trains, the next is sampled with the policy it began with (`overlap: 1`).

Why a checkpoint holds these episodes: docs/decisions/overlap.md.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from threading import Thread
from typing import Any

from lightning.pytorch import Trainer

from callbacks.over_ranks import of_ranks, own_rank
from callbacks.scored_groups import evaluating
from common.costs import counted
from common.errors import ConfigError
from datamodules.question_data import QuestionData
from datamodules.records import episode_from_row, episode_to_row
from envs.interfaces import Sampler
from envs.retrieval import RetrievalEnvironment
from envs.rollout import Sampling
from envs.types import Episode, Question
from modules.policy_gradient import PolicyGradient
from modules.sharding import gathered


class SamplingAhead:
    """The `sampling` of a rollout whose episodes were sampled one iteration ahead; those of the first are sampled now.

    `start` returns at once where turns are made elsewhere, and a thread asks for them while the policy trains; from a
    model in this process everything is sampled before it returns. `finish` waits, and writes the episodes of all ranks
    as text. What trains is read from this text, and a checkpoint holds it: a resumed run trains on what an unbroken one
    does. Questions and random numbers of an iteration are those without overlap.

    Attributes:
        kept: of each rank, the episodes of the next iteration and what they cost: plain values, for a checkpoint.
        counts: what sampler and environment have counted for the episodes that were used.
    """

    def __init__(self, environment: RetrievalEnvironment, sampler: Sampler, sampling: Sampling) -> None:
        self.environment, self.sampler, self.sampling = environment, sampler, sampling
        self.kept: list[dict[str, Any]] | None = None
        self.counts: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}  # by tag, what the episodes used last took
        self._waited = 0.0  # seconds of the last `finish`
        self._thread: Thread | None = None
        self._outcome: dict[str, Any] | Exception | None = None

    def check(self, module: PolicyGradient) -> None:
        """Require a loss that corrects for episodes of an earlier policy.

        Raises:
            ConfigError: it does not.
        """
        if module.importance_cap is None:
            raise ConfigError(
                f"the rollout's overlap: 1 samples with the policy from before the last update, which "
                f"{type(module).__name__} would take for the current one: set the module's importance_cap: 2.0 "
                "(modules.grpo:GRPO, modules.ppo:PPO), or overlap: 0"
            )

    def __call__(
        self,
        environment: RetrievalEnvironment,
        sampler: Sampler,
        questions: Sequence[Question],
        *,
        iteration: int,
        **settings: Any,
    ) -> list[Episode]:
        """The episodes that were sampled ahead for this iteration, once; all others are sampled now."""
        kept, self.kept = self.kept, None
        if kept is None:
            return self.sampling(environment, sampler, questions, iteration=iteration, **settings)
        own = kept[own_rank()]
        self.counts += Counter(own["spent"])
        self._seconds = own["seconds"]
        return [episode_from_row(json.loads(row), f"iteration {iteration}, sampled ahead") for row in own["episodes"]]

    def start(self, trainer: Trainer, module: PolicyGradient, data: QuestionData) -> None:
        """Sample the next iteration, where there is one, from the weights that the sampler has loaded."""
        if _is_last(trainer, module, data):
            return
        iteration = trainer.current_epoch + 1
        settings = {"group_size": data.group_size, "seed": data.seed, "iteration": iteration}
        sampled = partial(self._sampled, data.share(iteration), settings)
        with evaluating(module), gathered(module):
            if not self.sampler.freeze():
                self._outcome = sampled()
                return

        def work() -> None:
            try:
                self._outcome = sampled()
            except Exception as error:  # raised where it is waited for
                self._outcome = error

        self._thread = Thread(target=work, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait for what was started, and keep it; called on all ranks, before the sampler loads other weights.

        Raises:
            Exception: what ended the sampling.
        """
        begun = time.perf_counter()
        if self._thread is not None:
            self._thread.join()
        outcome, self._outcome, self._thread = self._outcome, None, None
        if isinstance(outcome, Exception):
            raise outcome
        self.kept = None if outcome is None else of_ranks(outcome)
        self._waited = time.perf_counter() - begun

    def with_times(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Seconds of an iteration and of its episodes; the wait for the next ones is no part of the update."""
        times = dict(seconds) | {"time/waiting": self._waited}
        times["time/update"] -= self._waited
        for name, spent in self._seconds.items():
            times[name] += spent
        return times

    def _sampled(self, questions: Sequence[Question], settings: dict[str, Any]) -> dict[str, Any]:
        """This rank's episodes as text, and what they cost."""
        begun, searched = time.perf_counter(), self.environment.seconds
        before = counted(self.sampler, self.environment)
        episodes = self.sampling(self.environment, self.sampler, questions, **settings)
        seconds = {
            "time/rollout": time.perf_counter() - begun,
            "time/retrieval": self.environment.seconds - searched,
        }
        rows = [json.dumps(episode_to_row(episode), ensure_ascii=False) for episode in episodes]
        spent = counted(self.sampler, self.environment) - before
        return {"episodes": rows, "spent": dict(spent), "seconds": seconds}


def _is_last(trainer: Trainer, module: PolicyGradient, data: QuestionData) -> bool:
    """Whether no iteration follows, as far as is known: by epochs, by steps or by a budget."""
    spent = module.progress is not None and module.progress() >= 1
    by_steps = trainer.max_steps != -1 and trainer.global_step + data.updates >= trainer.max_steps
    return spent or by_steps or trainer.current_epoch + 1 == trainer.max_epochs
