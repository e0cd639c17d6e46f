"""Rollout callback: at the start of an iteration sample, score, assign credit and fill the buffer."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from callbacks.iteration_costs import costs_of_ranks, own_costs
from callbacks.over_ranks import means, summed
from callbacks.sampling_ahead import SamplingAhead
from callbacks.scored_groups import GroupSampling, evaluating
from common.costs import costs_in, counted
from common.errors import ConfigError
from common.progress import current
from datamodules.question_data import QuestionData
from envs.interfaces import Oracle, RewardContext, Sampler
from envs.retrieval import RetrievalEnvironment
from envs.rollout import Sampling, independent_groups
from envs.types import Episode
from evaluation.rollout_metrics import flat_groups, measure
from modules.episode_tensors import credit_inputs
from modules.policy import Policy
from modules.policy_gradient import PolicyGradient
from modules.rewards.terms import Scores, Term, read_terms, settled
from modules.sharding import gathered

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Iteration:
    """What a rank sampled in an iteration, group by group: B episodes, their rewards and their advantages `[B, S]`."""

    episodes: list[Episode]
    group_size: int
    scores: Scores
    advantages_BS: Tensor


class RolloutCallback(Callback):
    """Fills the buffer of the datamodule at the start of every epoch, for the module to train on.

    Each rank samples and scores the episodes of its own questions: there is no collective call in between, since ranks
    take different numbers of turns. An episode that could not be scored is not trained. `counts`, kept in checkpoints,
    has what all ranks have sampled and what rewards have spent so far.

    Args:
        environment: protocol, retriever and limits.
        sampler: samples from the module's policy; its `temperature` must be the module's and its `top_p` 1.
        rewards: by name, `{weight, level, reward}`, or `Term`s.
        sampling: how the episodes of an iteration are sampled; independent groups by default.
        overlap: 0 samples an iteration with the current policy; 1 samples it while the iteration before trains, with
            the policy that that one began with, for which the module needs `importance_cap`.
        oracle: logs how many searches were needless and how many statements untrue, where truth is known.

    Raises:
        ConfigError: rewards or sampler do not fit; on setting up, module or data lack something, or the policy cannot
            read the protocol's ids.
        ScoringError: in an iteration, a reward scored no episode, or all episodes failed.
        RetrievalError: in an iteration, the retriever failed too often in a row.
    """

    def __init__(
        self,
        environment: RetrievalEnvironment,
        sampler: Sampler,
        *,
        rewards: Mapping[str, Term],
        sampling: Sampling = independent_groups,
        overlap: Literal[0, 1] = 0,
        oracle: Oracle | None = None,
    ) -> None:
        self.sampler, self.terms = sampler, read_terms(rewards)
        self.environment, self.oracle = environment, oracle
        self.sampling = sampling
        self._ahead = SamplingAhead(environment, sampler, sampling) if overlap else None
        self._rollout = GroupSampling(environment, sampler, self._ahead or sampling, self.terms)
        self.counts: Counter[str] = Counter()
        self._sampled = 0  # tokens of an iteration
        self._update_start = 0.0
        self.latest: Iteration | None = None
        self._warned = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        module, data = pl_module, _data(trainer)
        if not isinstance(module, PolicyGradient) or not isinstance(data, QuestionData):
            raise ConfigError(
                "RolloutCallback needs a module with a credit function, such as modules.grpo:GRPO, and the data of "
                "iterations, such as datamodules.question_data:QuestionData"
            )
        if trainer.precision == "bf16-true":
            raise ConfigError("trainer.precision bf16-true would round log-probs: use bf16-mixed")
        self.sampler.load(module.policy)  # of several agents, those that load are looked at
        if (self.sampler.temperature, self.sampler.top_p) != (module.temperature, 1.0):
            raise ConfigError(
                f"the rollout's sampler has temperature {self.sampler.temperature} and top_p {self.sampler.top_p}, but "
                f"the module trains log-probs at temperature {module.temperature} and top_p 1: give both the same"
            )
        engine, trained = self.sampler.engine_dtype, _computed_in(trainer, module.policy)
        if engine and (engine, trained) != ("float32", "float32") and module.importance_cap is None:
            raise ConfigError(
                f"the rollout's engine computes in {engine}, the trainer in {trained}, and {type(module).__name__} "
                "would take the engine's log-probs for the trainer's: give both float32, or use modules.grpo:GRPO with "
                "importance_cap: 2.0"
            )
        if self._ahead is not None:
            self._ahead.check(module)
        if data.group_size < module.smallest_group:
            raise ConfigError(
                f"group_size {data.group_size}: this module's credit compares the episodes of a question, at least "
                f"{module.smallest_group}; with a critic (modules.ppo:PPO) a question needs one alone"
            )
        if module.likelihood_weight and data.updates == 1:
            raise ConfigError("likelihood_weight acts from the second update of an iteration on: give data.updates: 2")
        if module.resample_rounds:
            data.spares(0, module.resample_rounds - 1)  # raises where there are too few questions
        self.environment.check(self.sampler)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module, data, rollout = cast(PolicyGradient, pl_module), _data(trainer), self._rollout
        current().unit = "iteration"
        searched, before = self.environment.seconds, counted(self.sampler, self._ahead, self.environment)
        context = RewardContext(self.environment.protocol, self.sampler)
        with evaluating(module), gathered(module):
            self.sampler.load(module.policy)
            groups = rollout.groups(module, data, trainer.current_epoch, context)
            with rollout.timed("time/estimates"):
                estimates = module.estimate(groups.episodes)
        if self._ahead is None:
            self.sampler.rest()
        episodes = groups.episodes
        scores = settled(self.terms, groups.scores, episodes, summed)
        inputs = credit_inputs(episodes, scores, data.group_size)
        credited = module.assign(episodes, replace(inputs, sum_over_ranks=summed, **estimates))
        data.fill(credited.rows)
        self.latest = Iteration(episodes, data.group_size, scores, credited.advantages_BS)
        protocol, oracle = self.environment.protocol, self.oracle
        values = measure(episodes, scores, credited.advantages_BS, protocol, group_size=data.group_size, oracle=oracle)
        self._warned = self._warned or _overshadowed(scores, data.group_size)
        averages = means(values)
        module.log_dict(averages)
        current().facts |= {name: averages[name] for name in ("reward", "step_reward") if name in averages}
        flat = credited.flat if module.resample_rounds else None
        own = own_costs(groups, data.group_size, reward_tokens=rollout.reward_tokens, flat=flat)
        totals = costs_of_ranks(own, counted(self.sampler, self._ahead, self.environment) - before, context)
        self.counts += costs_in(totals)
        module.log_dict({name: float(totals[name]) for name in own} | {n: float(c) for n, c in self.counts.items()})
        self._sampled = own["tokens/rollout"]
        rollout.seconds["time/retrieval"] = self.environment.seconds - searched
        if self._ahead is not None:
            self._ahead.start(trainer, module, data)
        self._update_start = time.perf_counter()  # after the ranks have waited for each other

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._ahead is not None and trainer.is_last_batch:  # before a validation loads or a checkpoint is written
            self._ahead.finish()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Straight to the logger: times differ from run to run, so they are no result of the stage.
        seconds = self._rollout.seconds | {"time/update": time.perf_counter() - self._update_start}
        if self._ahead is not None:
            seconds = self._ahead.with_times(seconds)
        speed = {"perf/tokens_per_s": self._sampled / max(seconds["time/rollout"], 1e-9)}
        for logger in trainer.loggers:
            logger.log_metrics(seconds | speed, step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {"counts": dict(self.counts)} | ({} if self._ahead is None else {"ahead": self._ahead.kept})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.counts = Counter(state_dict["counts"])
        if self._ahead is not None:
            self._ahead.kept = state_dict["ahead"]

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if _data(trainer).mid_iteration:
            raise ConfigError(
                "a checkpoint in the middle of an iteration could not be resumed: give ModelCheckpoint filename: last, "
                "enable_version_counter: false and no every_n_train_steps or train_time_interval"
            )


def _computed_in(trainer: Trainer, policy: Policy | Mapping[str, Policy]) -> str:
    """What the trained policies compute in: the Trainer's precision, or the type of their weights."""
    weights = {one.model.dtype for one in (policy.values() if isinstance(policy, Mapping) else [policy])}
    if trainer.precision != "32-true":
        return str(trainer.precision)
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in weights))


def _overshadowed(scores: Scores, group_size: int) -> bool:
    """Warn where the outcome reward of most weight is flat in most groups, and a lesser one decides there."""
    weights = scores.outcome_weights
    if len(weights) < 2:
        return False
    flat, heaviest = flat_groups(scores, group_size), max(weights, key=lambda name: abs(weights[name]))
    others_Q = torch.stack([1 - flat[name] for name in weights if name != heaviest]).amax(dim=0)
    share = float((flat[heaviest] * others_Q).mean())
    if share > 0.5:
        log.warning(
            "reward %s is the same in all episodes of a question, and a lesser reward is not, for %.0f %% of the "
            "questions: credit that normalises their sum trains the lesser one there at full size; give the credit "
            "scale_rewards: apart",
            heaviest,
            100 * share,
        )
    return share > 0.5


def _data(trainer: Trainer) -> QuestionData:
    return trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]


def rollout_of(trainer: Trainer) -> RolloutCallback | None:
    """The callback that fills the buffer, for those beside it."""
    callbacks = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    return next((callback for callback in callbacks if isinstance(callback, RolloutCallback)), None)
