"""Learning curves: the policy answers a few held-out questions now and then while it is trained."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks.over_ranks import of_ranks, summed
from common.errors import ConfigError
from envs.interfaces import Sampler
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from evaluation.evaluate import Benchmark
from evaluation.kept_episodes import keep, passages
from evaluation.scoring import RATES, Row, score
from modules.sharding import gathered
from modules.training import BaseTraining

MEASURES = ("em", "f1", "flawed", "unresolved", "searches", "valid_steps")


class Validation(Callback):
    """Logs `eval/<dataset>/<split>/<measure>` before training, after every `every`th epoch and after the last.

    The episodes are kept in the stage's folder, `data/validation/<dataset>-<split>-<update>.json`
    (`evaluation.kept_episodes`): the same questions at every point of the curve.

    Answers are greedy; a question that the retriever failed is in no measure but `failed`. Each rank takes its share
    of the questions and one reduction follows, so no rank waits inside an episode. Training continues as if nothing had
    been asked.

    Args:
        datasets: what to ask, by the name that metrics carry; give dev questions, and few (`sample`).
        environment: where they are asked.
        sampler: asks the policy that is trained; greedy, for a curve without noise.
        every: epochs; in reinforcement learning an epoch is an iteration.
        pool: episodes in flight.

    Raises:
        ConfigError: a setting is out of range; on setting up, there is no policy, or it cannot read the protocol's ids.
        RetrievalError: while asking, the retriever failed too often in a row.
    """

    def __init__(
        self,
        datasets: dict[str, Benchmark],
        environment: RetrievalEnvironment,
        sampler: Sampler,
        *,
        every: int = 10,
        pool: int = 64,
    ) -> None:
        if min(every, pool) < 1:
            raise ConfigError(f"every {every}, pool {pool}: each must be at least 1")
        self.datasets, self.environment, self.sampler, self.every = datasets, environment, sampler, every
        self.pool = pool

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, BaseTraining):
            raise ConfigError("Validation goes with a module that trains a policy, such as modules.grpo:GRPO")
        self.sampler.load(pl_module.policy)
        self.environment.check(self.sampler)
        drawn = tuple(f"eval/{name}/{dataset.split}/" for name, dataset in self.datasets.items())
        for one in trainer.checkpoint_callbacks:
            monitor = getattr(one, "monitor", None) or ""
            if monitor.startswith("eval/") and not monitor.startswith(drawn):
                logged = ", ".join(drawn)
                raise ConfigError(f"monitor: {monitor} of a ModelCheckpoint is not logged: give one of {logged}")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == 0:
            self._measured(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done = trainer.current_epoch + 1
        last = done == trainer.max_epochs or trainer.global_step == trainer.max_steps or trainer.should_stop
        if done % self.every == 0 or last:
            pl_module.log_dict(self._measured(trainer, pl_module), logger=False)

    def _measured(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        """Means over all ranks of each measure that applies, logged at the number of updates made so far.

        The Trainer's own step at the end of an epoch is one lower, where the start of training is drawn.
        """
        assert isinstance(pl_module, BaseTraining)
        start = time.perf_counter()
        self.sampler.load(pl_module.policy)
        training = pl_module.model.training
        pl_module.model.eval()
        try:
            with gathered(pl_module):
                asked = {name: self._ask(name, dataset, trainer) for name, dataset in self.datasets.items()}
        finally:
            pl_module.model.train(training)
        self.sampler.rest()
        values = {
            f"eval/{name}/{self.datasets[name].split}/{measure}": known
            for name, (rows, _) in asked.items()
            for measure, known in _values(rows).items()
        }
        for name, (rows, found) in asked.items():
            self._keep(name, rows, found, trainer)
        totals = torch.tensor([[sum(known), len(known)] for known in values.values()], dtype=torch.float64)
        totals = summed(totals).tolist()
        means = {name: total / count for name, (total, count) in zip(values, totals, strict=True) if count}
        seconds = {"time/validation": time.perf_counter() - start}
        for logger in trainer.loggers:
            logger.log_metrics(means | seconds, step=trainer.global_step)
        return means

    def _ask(self, name: str, dataset: Benchmark, trainer: Trainer) -> tuple[list[Row], dict[str, Row]]:
        """The rows of this rank's questions, and the passages that they found."""
        environment = self.environment.variant(retriever=dataset.retriever)
        questions = list(dataset.questions)[trainer.global_rank :: trainer.world_size]
        episodes = rollout(environment, self.sampler, questions, seed=0, pool=self.pool, label=name)
        rows = [
            score(
                episode,
                valid=environment.protocol.valid(episode),
                retrieves=environment.retriever is not None,
                match=dataset.match,
                oracle=dataset.oracle,
            )
            for episode in episodes
        ]
        return rows, passages(episodes)

    def _keep(self, name: str, rows: list[Row], found: dict[str, Row], trainer: Trainer) -> None:
        """Write the episodes of all ranks, in the order of the questions; every rank calls this after its rollout."""
        asked = of_ranks((rows, found))
        if trainer.global_rank:
            return
        dealt = zip_longest(*(rows for rows, _ in asked))
        everything = {id_: row for _, found in asked for id_, row in found.items()}
        split, update = self.datasets[name].split, trainer.global_step
        keep(
            Path(trainer.default_root_dir) / "data" / "validation" / f"{name}-{split}-{update:06d}.json",
            [row for round_ in dealt for row in round_ if row is not None],
            dict(sorted(everything.items())),
            dataset=name,
            split=split,
            update=update,
        )


def _values(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Each measure of the questions where it is known."""
    values = {measure: [float(row[measure]) for row in rows if row[measure] is not None] for measure in MEASURES}
    values |= {rate: _verdicts(rows, *counts) for rate, counts in RATES.items()}
    return values | {"failed": [float(row["status"] == "error") for row in rows]}


def _verdicts(rows: Sequence[Row], wrong: str, judged: str) -> list[float]:
    """A 1 for every step that is wrong and a 0 for every other that was judged, of all rows: their mean is a rate."""
    bad = sum(row[wrong] or 0 for row in rows)
    return [1.0] * bad + [0.0] * (sum(row[judged] or 0 for row in rows) - bad)
