"""An iteration of reinforcement learning: sample with the current policy, score, turn rewards into advantages."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from common.errors import ConfigError, UserError
from datamodules.question_data import QuestionData
from envs.interfaces import Retriever, RewardContext, Sampler
from envs.packing import PackedSequence
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Episode, Hit
from evaluation.rollout_metrics import measure
from modules.grpo import GRPO
from modules.rewards.terms import Scores, Term, combine, read_terms
from modules.sharding import gathered
from modules.training_rows import step_lengths, step_means, token_advantages, training_rows


class ScoringError(UserError):
    """Nothing of an iteration could be scored: there is nothing to learn from."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """What a rank sampled in an iteration, group by group: B episodes, their rewards and their advantages `[B, S]`."""

    episodes: list[Episode]
    scores: Scores
    advantages_BS: Tensor


class RolloutCallback(Callback):
    """Fills the buffer of a `QuestionData` at the start of every epoch, for a `GRPO` module to train on.

    Each rank samples `group_size` episodes for each of its questions and scores them alone: no collective call lies
    between, for ranks take different numbers of turns. An episode that could not be scored trains nothing; a turn that
    several episodes share is trained in the first of them.

    Args:
        environment: where episodes are sampled.
        sampler: samples from the policy that is trained, at the module's temperature and with top-p 1.
        rewards: by name, `{weight, level, reward}`, or `Term`s.
        advantage: `(step_rewards_BS, step_mask_BS, outcome_B, *, group_size)`, and `step_lengths_BS` where it asks for
            that, gives `[B, S]`, or `[B, T]` with one a policy token in the order of the steps.
        group_size: episodes a question.
        pool: episodes in flight.

    Raises:
        ConfigError: a setting is out of range; on setting up, module or data is of another kind, or the policy cannot
            read the protocol's ids.
        ScoringError: in an iteration, a reward could not be had for any episode, or all episodes failed.
        RetrievalError: in an iteration, the retriever failed too often in a row.
    """

    def __init__(
        self,
        environment: RetrievalEnvironment,
        sampler: Sampler,
        *,
        rewards: Mapping[str, Term],
        advantage: Callable[..., Tensor],
        group_size: int = 8,
        pool: int = 64,
    ) -> None:
        if group_size < 2 or pool < 1:
            raise ConfigError(f"group_size {group_size}, pool {pool}: group_size must be at least 2, pool 1")
        self.terms, self.advantage, self.sampler = read_terms(rewards), advantage, sampler
        self.group_size, self.pool = group_size, pool
        self._retriever = None if environment.retriever is None else _Timed(environment.retriever)
        self.environment = environment.variant(retriever=self._retriever)
        self._seconds: dict[str, float] = {}
        self._sampled = 0
        self._since = 0.0
        self.latest: Iteration | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, GRPO) or not isinstance(_data(trainer), QuestionData):
            raise ConfigError("RolloutCallback goes with modules.grpo:GRPO and datamodules.question_data:QuestionData")
        if (self.sampler.temperature, self.sampler.top_p) != (pl_module.temperature, 1.0):
            raise ConfigError(
                f"the rollout samples at temperature {self.sampler.temperature} and top_p {self.sampler.top_p}: "
                f"it must sample at the module's temperature, {pl_module.temperature}, and top_p 1"
            )
        self.sampler.load(pl_module.policy)
        self.environment.check(self.sampler)
        _data(trainer).group_size = self.group_size

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, GRPO)
        start = time.perf_counter()
        if self._retriever is not None:
            self._retriever.seconds = 0.0
        episodes = self._sample(pl_module, _data(trainer), trainer.current_epoch)
        sampled = time.perf_counter()
        scores = combine(self.terms, episodes, RewardContext(self.environment.protocol))
        scored = time.perf_counter()
        _refuse_unscored(scores, episodes, trainer.current_epoch)
        advantages_BS, rows = self._rows(episodes, scores, drop=pl_module.zero_variance == "drop")
        self.latest = Iteration(episodes, scores, advantages_BS)
        _data(trainer).fill(rows)
        values = measure(episodes, scores, advantages_BS, self.environment.protocol, group_size=self.group_size)
        pl_module.log_dict(_means(values, trainer.strategy))
        retrieval = 0.0 if self._retriever is None else self._retriever.seconds
        self._seconds = {"time/rollout": sampled - start, "time/retrieval": retrieval, "time/prm": scored - sampled}
        self._sampled = sum(len(turn.action_ids) for episode in episodes for turn in episode.turns)
        self._since = time.perf_counter()  # after the ranks have waited for each other

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Straight to the logger: times are no result of the stage, they differ from run to run.
        speed = {"perf/tokens_per_s": self._sampled / max(self._seconds["time/rollout"], 1e-9)}
        update = {"time/update": time.perf_counter() - self._since}
        if trainer.logger is not None:
            trainer.logger.log_metrics(self._seconds | update | speed, step=trainer.global_step)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if _data(trainer).mid_iteration:
            raise ConfigError(
                "a checkpoint in the middle of an iteration could not be resumed: give ModelCheckpoint filename: last, "
                "enable_version_counter: false and no every_n_train_steps or train_time_interval"
            )

    def _sample(self, module: GRPO, data: QuestionData, iteration: int) -> list[Episode]:
        """This rank's episodes, group by group, by the policy as it is now."""
        self.sampler.load(module.policy)
        module.model.eval()
        try:
            with gathered(module):
                return rollout(
                    self.environment,
                    self.sampler,
                    data.share(iteration),
                    seed=data.seed,
                    samples=self.group_size,
                    iteration=iteration,
                    pool=self.pool,
                    label=f"iteration {iteration}",
                )
        finally:
            module.model.train()

    def _rows(
        self, episodes: Sequence[Episode], scores: Scores, *, drop: bool
    ) -> tuple[Tensor, list[list[PackedSequence]]]:
        """Advantages, `[B, S]` to be shown, and what each episode trains."""
        lengths_BS = step_lengths(episodes, scores.step_mask_BS.shape[1])
        asked = "step_lengths_BS" in inspect.signature(self.advantage).parameters
        given = self.advantage(
            scores.step_BS,
            scores.step_mask_BS,
            scores.outcome_B,
            group_size=self.group_size,
            **({"step_lengths_BS": lengths_BS.float()} if asked else {}),
        )
        advantages_BT = token_advantages(given, lengths_BS)
        kept_B = scores.outcome_B.isfinite()
        if drop:
            flat_Q = (advantages_BT == 0).reshape(-1, self.group_size * advantages_BT.shape[1]).all(dim=1)
            kept_B = kept_B & ~flat_Q.repeat_interleave(self.group_size)
        shown_BS = given if given.shape == lengths_BS.shape else step_means(advantages_BT, lengths_BS)
        return shown_BS, training_rows(episodes, kept_B.tolist(), advantages_BT, lengths_BS)


class _Timed:
    """A retriever whose seconds are counted."""

    def __init__(self, retriever: Retriever) -> None:
        self.retriever, self.seconds = retriever, 0.0

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        start = time.perf_counter()
        try:
            return self.retriever.search(queries, k)
        finally:
            self.seconds += time.perf_counter() - start


def _means(values: Mapping[str, Tensor], strategy: Strategy) -> dict[str, float]:
    """Means over all ranks; NaN for a tag without any value."""
    known = [one.double()[one.double().isfinite()] for one in values.values()]
    totals = torch.tensor([[float(one.sum()), float(len(one))] for one in known], device=strategy.root_device)
    totals = strategy.reduce(totals, reduce_op="sum").tolist()
    return {name: total / count if count else math.nan for name, (total, count) in zip(values, totals, strict=True)}


def _data(trainer: Trainer) -> QuestionData:
    return trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]


def _refuse_unscored(scores: Scores, episodes: Sequence[Episode], iteration: int) -> None:
    """End where a reward could not be had at all: to train on the others alone would be another method."""
    where = f"iteration {iteration}"
    known = [episode for episode in episodes if episode.status != "error"]
    if not known:
        raise ScoringError(f"{where}: all {len(episodes)} episodes failed; the first: {episodes[0].error}")
    if not bool(scores.step_mask_BS.any()):
        longest = max(len(episode.prompt_ids) for episode in episodes)
        raise ScoringError(f"{where}: no prompt leaves room for a turn (longest {longest} tokens): raise limits")
    for name, values in scores.breakdown.items():
        looked_at = values[scores.step_mask_BS] if values.dim() == 2 else values
        if len(looked_at) and bool(looked_at.isnan().all()):
            reason = scores.failures.get(name, "it gave no number")
            raise ScoringError(f"{where}: reward {name} could not be had for any of {len(known)} episodes: {reason}")
