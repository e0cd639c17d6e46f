"""The clock of reinforcement learning: at the start of an iteration sample, score, assign credit, fill the buffer."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from callbacks.learner import IterationData, Learner
from callbacks.rank_counts import over_ranks
from callbacks.resampling import ScoredGroups, replace_flat_groups
from common.accounts import accounts_in, counted, tokens_in
from common.errors import ConfigError, UserError
from envs.interfaces import HasEngine, Oracle, RewardContext, Sampler
from envs.retrieval import RetrievalEnvironment
from envs.rollout import Sampling, independent_groups
from envs.types import Episode, Question
from evaluation.rollout_metrics import measure, search_truth
from modules.functional.credit import Credit, CreditInputs, MissingInput
from modules.policy import Policy
from modules.rewards.terms import Scores, Term, combine, read_terms, settled
from modules.sharding import gathered
from modules.training_rows import credit_inputs, flat_groups, in_places, step_means, token_advantages


class ScoringError(UserError):
    """Nothing of an iteration could be scored: there is nothing to learn from."""


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
        oracle: Oracle | None = None,
    ) -> None:
        self.sampler, self.terms, self.sampling = sampler, read_terms(rewards), sampling
        self.environment, self.oracle = environment, oracle
        self.counts: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._sampled = self._for_rewards = 0  # tokens of an iteration
        self._update_start = 0.0
        self.latest: Iteration | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, Learner) or not isinstance(_data(trainer), IterationData):
            raise ConfigError(
                "RolloutCallback needs a module with a credit function, such as modules.grpo:GRPO, and the data of "
                "iterations, such as datamodules.question_data:QuestionData"
            )
        if trainer.precision == "bf16-true":
            raise ConfigError("trainer.precision bf16-true would round log-probs: use bf16-mixed")
        self.sampler.load(pl_module.policy)  # of several agents, those that load are looked at
        if (self.sampler.temperature, self.sampler.top_p) != (pl_module.temperature, 1.0):
            raise ConfigError(
                f"the rollout's sampler has temperature {self.sampler.temperature} and top_p {self.sampler.top_p}, but "
                f"the module trains log-probs at temperature {pl_module.temperature} and top_p 1: give both the same"
            )
        engine = self.sampler.engine_dtype if isinstance(self.sampler, HasEngine) else None
        trained = _computed_in(trainer, pl_module.policy)
        if engine and (engine, trained) != ("float32", "float32") and not pl_module.corrects:
            raise ConfigError(
                f"the rollout's engine computes in {engine}, the trainer in {trained}, and {type(pl_module).__name__} "
                "would take the engine's log-probs for the trainer's: give both float32, or use modules.grpo:GRPO with "
                "importance_cap: 2.0"
            )
        if (size := _data(trainer).group_size) < pl_module.smallest_group:
            raise ConfigError(
                f"group_size {size}: this module's credit compares the episodes of a question, at least "
                f"{pl_module.smallest_group}; with a critic (modules.ppo:PPO) a question needs one alone"
            )
        if rounds := pl_module.resample_rounds:
            _data(trainer).spares(0, rounds - 1)  # raises where there are too few questions
        self.environment.check(self.sampler)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module, data, iteration = cast(Learner, pl_module), _data(trainer), trainer.current_epoch
        self._seconds.clear()
        self._for_rewards = 0
        searched, before = self.environment.seconds, counted(self.sampler)
        context = RewardContext(self.environment.protocol, self.sampler)
        with _evaluating(pl_module), gathered(pl_module):
            self.sampler.load(module.policy)
            groups = self._groups(module, data, iteration, context)
            episodes = groups.episodes
            with self._timed("time/estimates"):
                estimates = module.estimate(episodes)
        total = partial(_sum, trainer.strategy)
        scores = settled(self.terms, groups.scores, episodes, total)
        inputs = credit_inputs(episodes, scores, data.group_size, estimates, total)
        advantages = _advantages(module.credit, inputs)
        assert inputs.step_lengths_BS is not None
        advantages_BT = token_advantages(advantages, inputs.step_lengths_BS)
        kept_B = module.trained_episodes(inputs, advantages_BT)
        channels = module.token_channels(inputs, advantages_BT, kept_B)
        data.fill(in_places(episodes, module.rows(episodes, inputs, kept_B, channels), data.group_size))

        per_step = advantages.shape == inputs.step_lengths_BS.shape
        advantages_BS = advantages if per_step else step_means(advantages_BT, inputs.step_lengths_BS)
        self.latest = Iteration(episodes, data.group_size, scores, advantages_BS)
        values = measure(episodes, scores, advantages_BS, self.environment.protocol, group_size=data.group_size)
        if self.oracle is not None:
            values |= search_truth(episodes, self.oracle)
        pl_module.log_dict(_means(values, trainer.strategy))
        self._sampled = _tokens(episodes) + _tokens(groups.thrown_away)
        counts = {"tokens/rollout": self._sampled, "tokens/rewards": self._for_rewards}
        if module.resample_rounds:
            counts["groups/resampled"] = len(groups.thrown_away) // data.group_size
            counts["groups/flat"] = len(flat_groups(advantages_BT, data.group_size))
            counts["tokens/thrown_away"] = _tokens(groups.thrown_away)
        spent = counted(self.sampler) - before + context.counts
        alone = {
            query: own.spent + Counter({"tokens/rewards": tokens_in(own.spent)}) for query, own in context.alone.items()
        }
        totals = over_ranks(Counter(counts) + accounts_in(spent), alone)
        self.counts += accounts_in(totals)
        pl_module.log_dict(
            {name: float(totals[name]) for name in counts} | {n: float(c) for n, c in self.counts.items()}
        )
        self._seconds["time/retrieval"] = self.environment.seconds - searched
        self._update_start = time.perf_counter()  # after the ranks have waited for each other

    def _groups(self, module: Learner, data: IterationData, iteration: int, context: RewardContext) -> ScoredGroups:
        """This rank's episodes of an iteration and their rewards, flat groups sampled anew where the module asks."""

        def sample(questions: list[Question]) -> list[Episode]:
            settings = {"group_size": data.group_size, "seed": data.seed, "iteration": iteration}
            with self._timed("time/rollout"):
                return self.sampling(self.environment, self.sampler, questions, **settings)

        def score(episodes: Sequence[Episode]) -> Scores:
            before = tokens_in(counted(self.sampler))
            with self._timed("time/rewards"):
                scores = combine(self.terms, episodes, context)
            self._for_rewards += tokens_in(counted(self.sampler)) - before
            return scores

        def flat(groups: ScoredGroups) -> list[int]:
            inputs = credit_inputs(groups.episodes, groups.scores, data.group_size, None, _no_other_ranks)
            assert inputs.step_lengths_BS is not None
            advantages_BT = token_advantages(_advantages(module.credit, inputs), inputs.step_lengths_BS)
            return flat_groups(advantages_BT, data.group_size)

        def sample_others(number: int, places: Sequence[int]) -> list[Episode]:
            spares = data.spares(iteration, number)
            return sample([spares[place] for place in places])

        episodes = sample(data.share(iteration))
        groups = ScoredGroups(episodes, score(episodes))
        _check_scored(groups.scores, episodes, iteration)
        rounds = module.resample_rounds
        rules = {"group_size": data.group_size, "rounds": rounds}
        groups = replace_flat_groups(groups, **rules, flat=flat, sample=sample_others, score=score)
        if groups.thrown_away:
            _check_scored(groups.scores, groups.episodes, iteration)
        return groups

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - start

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Straight to the logger: times differ from run to run, so they are no result of the stage.
        speed = {"perf/tokens_per_s": self._sampled / max(self._seconds["time/rollout"], 1e-9)}
        update = {"time/update": time.perf_counter() - self._update_start}
        if trainer.logger is not None:
            trainer.logger.log_metrics(self._seconds | update | speed, step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {"counts": dict(self.counts)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.counts = Counter(state_dict["counts"])

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if _data(trainer).mid_iteration:
            raise ConfigError(
                "a checkpoint in the middle of an iteration could not be resumed: give ModelCheckpoint filename: last, "
                "enable_version_counter: false and no every_n_train_steps or train_time_interval"
            )


@contextmanager
def _evaluating(module: LightningModule) -> Iterator[None]:
    """In evaluation mode: no dropout, no gradient checkpointing."""
    module.eval()
    try:
        yield
    finally:
        module.train()


def _sum(strategy: Strategy, tensor: Tensor) -> Tensor:
    """A tensor added up over all ranks, on the CPU."""
    return cast(Tensor, strategy.reduce(tensor.to(strategy.root_device), reduce_op="sum")).cpu()


def _no_other_ranks(sums: Tensor) -> Tensor:
    """In place of `_sum` while ranks sample, where no collective call may be."""
    raise MissingInput("zero_variance: resample needs credit that compares the episodes of a group alone")


def _tokens(episodes: Sequence[Episode]) -> int:
    """Sampled tokens; those of a turn that several episodes share count once."""
    turns = {id(turn): turn for episode in episodes for turn in episode.turns}
    return sum(len(turn.action_ids) for turn in turns.values())


def _means(values: Mapping[str, Tensor], strategy: Strategy) -> dict[str, float]:
    """Means over all ranks; NaN for a tag without any value."""
    known = [value_N.double()[value_N.double().isfinite()] for value_N in values.values()]
    totals = torch.tensor([[float(value_N.sum()), float(len(value_N))] for value_N in known])
    totals = _sum(strategy, totals).tolist()
    return {name: total / count if count else math.nan for name, (total, count) in zip(values, totals, strict=True)}


def _advantages(credit: Credit, inputs: CreditInputs) -> Tensor:
    try:
        return credit(inputs)
    except MissingInput as error:
        raise ConfigError(str(error)) from error


def _computed_in(trainer: Trainer, policy: Policy | Mapping[str, Policy]) -> str:
    """What the trained policies compute in: the Trainer's precision, or the type of their weights."""
    weights = {one.model.dtype for one in (policy.values() if isinstance(policy, Mapping) else [policy])}
    if trainer.precision != "32-true":
        return str(trainer.precision)
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in weights))


def _data(trainer: Trainer) -> IterationData:
    return trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]


def rollout_of(trainer: Trainer) -> RolloutCallback | None:
    """The callback that fills the buffer, for those beside it."""
    callbacks = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    return next((callback for callback in callbacks if isinstance(callback, RolloutCallback)), None)


def _check_scored(scores: Scores, episodes: Sequence[Episode], iteration: int) -> None:
    """End the run where a reward scored nothing of a rank: training on the other rewards would be another method."""
    where = f"iteration {iteration}"
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
