"""A reward model that keeps up with the policy: it learns from the rollouts of reinforcement learning, while that runs.

As the policy changes, its steps come to differ from those that the reward model was fitted on. Every few iterations
the steps of the latest rollout are judged, and the reward model takes a few optimiser steps on them.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import Strategy
from torch import Tensor

from callbacks.over_ranks import counts_over_ranks
from callbacks.rollout import rollout_of
from common.accounts import JUDGED_STEPS, accounts_in, counted
from common.errors import ConfigError
from datamodules.label_data import Item, Items, collate_items
from datamodules.step_paths import judgeable_steps, step_id
from envs.interfaces import StepJudge
from envs.labelled_steps import LabelBatch, LabelledEpisode
from envs.siblings import Candidate
from envs.types import Episode
from modules.label_prm import LossWeights
from modules.reward_model.model import RewardModel, freeze_unused_output, to_device
from modules.training import TrainingError

log = logging.getLogger(__name__)


class RewardModelRefresh(Callback):
    """Trains the reward model on every `every`-th rollout, at the end of its iteration.

    The steps of the rollout's episodes are judged, each once, and `updates` full-batch optimiser steps are taken on all
    of them, of all ranks together: a rank adds its gradients up, so the ranks' reward models stay equal, and two ranks
    step as one. The calibrated score is trained, as log-odds. The iterations after score with the new model.

    Model and optimiser are kept in checkpoints; the labels need not be, for a rollout is learnt from at once. At the
    end the reward model is written to `reward_model/` of the stage. `counts` has the judged steps of all ranks, and
    what the judge has spent.

    Logged before the update, of the fresh steps: `refresh/loss`, the loss of a step; `refresh/accuracy`, how often a
    score above 0 agrees with a label above ½; `refresh/steps`, how many were judged.

    Args:
        reward_model: the one that the rewards score with: the same component.
        judge: labels steps.
        lr: learning rate (AdamW), constant.
        every: iterations from one refresh to the next.
        updates: optimiser steps of a refresh.
        episodes: of each group, how many are judged; None judges all.
        weights: of the losses; default `LossWeights()`.
        clip: largest norm of the gradient.
        max_tokens: of one forward pass; a longer sequence is left out, with a warning.

    Raises:
        ConfigError: a number is out of range; the reward model is not float32; on setting up, there is no rollout
            callback.
        TrainingError: the loss or its gradient is not finite.
    """

    def __init__(
        self,
        reward_model: RewardModel,
        judge: StepJudge,
        *,
        lr: float,
        every: int = 4,
        updates: int = 2,
        episodes: int | None = None,
        weights: LossWeights | None = None,
        clip: float = 1.0,
        max_tokens: int = 4096,
    ) -> None:
        if min(every, updates, 1 if episodes is None else episodes) < 1 or min(lr, clip) <= 0:
            raise ConfigError(
                f"every {every}, updates {updates}, episodes {episodes}, lr {lr}, clip {clip}: the first three must be "
                "at least 1, the others above 0"
            )
        self.reward_model, self.judge, self.every, self.updates = reward_model, judge, every, updates
        self.episodes, self.weights = episodes, weights or LossWeights()
        self.clip, self.max_tokens = clip, max_tokens
        self.counts: Counter[str] = Counter()
        reward_model.head.zero.requires_grad_(True)
        if reward_model.head.features is None:
            freeze_unused_output(reward_model.policy)
        parameters = [*reward_model.policy.model.parameters(), *reward_model.head.parameters()]
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        if any(parameter.dtype != torch.float32 for parameter in self._parameters):
            raise ConfigError("a reward model that is refreshed must be float32, or its steps are rounded away")
        self._optimizer = torch.optim.AdamW(self._parameters, lr, weight_decay=0.0)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if rollout_of(trainer) is None:
            raise ConfigError("RewardModelRefresh learns from rollouts: it needs a callbacks.rollout:RolloutCallback")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rollout = rollout_of(trainer)
        if (trainer.current_epoch + 1) % self.every or rollout is None or rollout.latest is None:
            return
        before, chosen = counted(self.judge), rollout.latest.episodes
        if self.episodes is not None:
            size = rollout.latest.group_size
            chosen = [one for number, one in enumerate(chosen) if number % size < self.episodes]
        labelled, judged = self._labelled(chosen)
        made = Items(self.max_tokens)
        items = [item for question in labelled for item in made.of_question(question)]
        if made.too_long:
            log.warning("%d sequences of more than %d tokens are not learnt from", made.too_long, self.max_tokens)
        spent = accounts_in(counted(self.judge) - before) + Counter({JUDGED_STEPS: judged})
        totals = counts_over_ranks(spent)
        self.counts += totals
        first = self._update(items, trainer.strategy)
        for _ in range(self.updates - 1):
            self._update(items, trainer.strategy)
        if first is not None:
            loss, accuracy = first
            values = {"loss": loss, "accuracy": accuracy, "steps": float(totals[JUDGED_STEPS])}
            pl_module.log_dict({f"refresh/{name}": value for name, value in values.items()})

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self.reward_model.save(Path(trainer.default_root_dir) / "reward_model")

    def state_dict(self) -> dict[str, Any]:
        model, head = self.reward_model.policy.model, self.reward_model.head
        return {
            "counts": dict(self.counts),
            "model": {name: value.detach() for name, value in model.named_parameters() if value.requires_grad},
            "head": head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.counts = Counter(state_dict["counts"])
        self.reward_model.policy.model.load_state_dict(state_dict["model"], strict=False)
        self.reward_model.head.load_state_dict(state_dict["head"])
        self._optimizer.load_state_dict(state_dict["optimizer"])

    def _labelled(self, episodes: Sequence[Episode]) -> tuple[list[list[LabelledEpisode]], int]:
        """This rank's labelled episodes, question by question, and how many steps were judged."""
        finished = [episode for episode in episodes if episode.status != "error"]
        asked: dict[str, Candidate] = {}
        places: list[dict[int, str]] = []
        for episode in finished:
            new = {place: one for place, one in judgeable_steps(episode) if step_id(one) not in asked}
            asked |= {step_id(one): one for one in new.values()}
            places.append({place: step_id(one) for place, one in new.items()})
        labels = dict(zip(asked, self.judge.label([*asked.values()]), strict=True)) if asked else {}
        labelled = [
            LabelledEpisode(episode, tuple(labels.get(own.get(place, "")) for place in range(len(episode.steps))))
            for episode, own in zip(finished, places, strict=True)
        ]
        return [list(group) for _, group in groupby(labelled, key=lambda one: one.episode.question.id)], len(asked)

    def _update(self, items: Sequence[Item], strategy: Strategy) -> tuple[float, float] | None:
        """One optimiser step on the labelled steps of all ranks; their loss and accuracy before it, None of none."""
        device = self.reward_model.policy.model.device
        sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, agreeing scores, steps
        self._optimizer.zero_grad()
        with torch.enable_grad():
            for batch in self._batches(items, device):
                raw_P = self.reward_model.raw_scores(batch.sequences)
                scores_P = self.reward_model.scale * raw_P + self.reward_model.offset
                total = self.weights.loss(scores_P, batch.label_P, batch.group_P)
                total.backward()
                agreeing = ((scores_P > 0) == (batch.label_P > 0.5)).sum()
                sums += torch.stack([total.detach().double(), agreeing.double(), agreeing.new_tensor(len(batch))])
        gradients = [parameter.grad if parameter.grad is not None else 0 * parameter for parameter in self._parameters]
        loss, agreeing, steps = cast(Tensor, strategy.reduce(sums, reduce_op="sum")).tolist()
        if not steps:
            return None
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = cast(Tensor, strategy.reduce(gradient.detach(), reduce_op="sum")) / steps
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self.clip))
        if not math.isfinite(loss + norm):
            raise TrainingError(f"the reward model's loss is {loss / steps}, its gradient's norm {norm}: lower its lr")
        self._optimizer.step()
        return loss / steps, agreeing / steps

    def _batches(self, items: Sequence[Item], device: torch.device) -> Iterator[LabelBatch]:
        """A batch an item, on the reward model's device."""
        for item in items:
            batch = collate_items([item])
            moved = (tensor.to(device) for tensor in (batch.label_P, batch.group_P, batch.number_P))
            yield LabelBatch(to_device(batch.sequences, device), *moved)
