"""Base of all training modules: the optimiser, exact means over ranks and accumulated batches, and the export."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from common.errors import ConfigError, UserError
from common.progress import current
from common.seeds import stable_hash
from modules.lora import LoRA, has_adapters, save_adapters
from modules.optimizer import Optimizer
from modules.policy import Policy
from modules.sharding import FSDP2, full_state, shard, whole

log = logging.getLogger(__name__)


class TrainingError(UserError):
    """Training cannot continue: a loss or a gradient that is not finite, advantages of a wrong shape."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss of a training module; no other loss trains its parameters.

    Attributes:
        modules: their trainable parameters are its own.
        lr: their learning rate, on the optimiser's schedule; None is the optimiser's.
        clip: the largest norm of their gradient; None is the Trainer's `gradient_clip_val`.
    """

    modules: tuple[nn.Module, ...]
    lr: float | None = None
    clip: float | None = None

    def parameters(self) -> list[nn.Parameter]:
        """The parameters that it trains."""
        return [parameter for module in self.modules for parameter in module.parameters() if parameter.requires_grad]


class BaseTraining(LightningModule):
    """Trains one policy or several. A subclass computes sums in `training_step` and passes them to `mean_losses`.

    Sums are divided by their counts only when the optimiser steps, over all ranks and accumulated batches, so a step
    is the same however its rows were shared out.

    Attributes:
        policy: what samplers load: a policy, or several by agent (`envs.sampling:ByAgent`).
        model: the module of what is trained of it.
        progress: the share of a budget that is spent, in [0, 1]; set before the optimiser is configured.

    Args:
        optimizer: how to train.
    """

    policy: Any
    model: Any

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.progress: Callable[[], float] | None = None
        self.strict_loading = False  # a checkpoint holds only what trains
        self._seed = torch.initial_seed()
        self._sums: Tensor | None = None  # [losses, 2], totals and counts of an optimiser step so far
        self._means: dict[str, Tensor] = {}  # for `log_means`, `[2]` each: total and count of an optimiser step so far

    def losses(self) -> dict[str, Loss]:
        """The losses by name. A module with several overrides this and calls `mean_losses`.

        The first is logged as `loss`, `grad_norm` and `lr`, the others as `loss/<name>` and so on.
        """
        return {"loss": Loss((self,))}

    def configure_model(self) -> None:
        """Shard the trainable modules under FSDP2.

        Raises:
            ConfigError: the strategy shards, but its checkpoints are not atomic.
        """
        strategy = self.trainer.strategy
        if not isinstance(strategy, ModelParallelStrategy):
            return
        if not isinstance(strategy, FSDP2):
            raise ConfigError(
                f"strategy {type(strategy).__name__} leaves half-written checkpoints behind when it is killed: "
                'use {target: "modules.sharding:FSDP2"}'
            )
        mixed = self.trainer.precision == "bf16-mixed"
        parts = [
            part for one in self.children() for part in (one.values() if isinstance(one, nn.ModuleDict) else [one])
        ]
        for module in parts:
            if any(parameter.requires_grad for parameter in module.parameters()):
                shard(
                    module, strategy.device_mesh["data_parallel"], mixed=mixed and isinstance(module, PreTrainedModel)
                )

    def configure_optimizers(self) -> Any:
        self._check_weights()
        groups = [
            {"params": loss.parameters()} | ({} if loss.lr is None else {"lr": loss.lr})
            for loss in self.losses().values()
        ]
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps):
            raise ConfigError("training has no end: give trainer.max_epochs or max_steps, by which the rate decays")
        # Lightning has built the loader to count them. A resumed run's position in its epoch is read back only into one
        # that is built afterwards, and without it the epoch would begin anew.
        self.trainer.fit_loop._combined_loader = None
        return self.optimizer.configure(groups, int(steps), self.progress)

    def _check_weights(self) -> None:
        """Require something to train, in a precision that can hold what it learns.

        Raises:
            ConfigError: nothing trains; float16, whose gradients overflow in a sum over a batch's tokens.
        """
        if self.trainer.precision in ("16-mixed", "16-true"):
            raise ConfigError(
                f"trainer.precision {self.trainer.precision}: the sums of a batch overflow; use bf16-mixed"
            )
        for name, loss in self.losses().items():
            if not loss.parameters():
                raise ConfigError(
                    f"{name}: no weight trains; a policy that was loaded with an `adapter` is frozen: load the merged "
                    "weights of the stage that trained it, its model/"
                )
        if any(weight.dtype == torch.bfloat16 for loss in self.losses().values() for weight in loss.parameters()):
            log.warning(
                "weights in bfloat16 train: a step smaller than a 256th of a weight is lost; load them in float32 and "
                "give trainer.precision: bf16-mixed"
            )

    def mean_loss(self, total: Tensor, count: Tensor) -> Tensor:
        """`mean_losses` of a module with one loss."""
        return self.mean_losses({"loss": (total, count)})

    def mean_losses(self, sums: Mapping[str, tuple[Tensor, Tensor]]) -> Tensor:
        """Return value of `training_step`: its share of the means over all ranks and batches of the optimiser step.

        Args:
            sums: for each of `losses()`, in their order, two scalars: the sum of the losses of this batch, and what it
                is to be divided by (tokens, weights, rows, pairs).

        Raises:
            TrainingError: a loss is not finite.
        """
        if list(sums) != list(self.losses()):
            raise ValueError(f"sums of {list(sums)} for the losses {list(self.losses())}")
        for name, (total, _) in sums.items():
            self._check_finite(f"{name} loss" if len(sums) > 1 else name, float(total.detach()))
        batch = torch.stack([torch.stack([total.detach().float(), count.float()]) for total, count in sums.values()])
        self._sums = batch if self._sums is None else self._sums + batch
        # Lightning divides by the accumulated batches and DDP by the ranks: undone here.
        scale = self.trainer.accumulate_grad_batches * self.trainer.world_size
        return torch.stack([total for total, _ in sums.values()]).sum() * scale

    def log_means(self, totals: Mapping[str, Tensor], count: float) -> None:
        """Log means of this batch's optimiser step with it, over all of its batches and ranks.

        Args:
            totals: scalars, each the sum of a measure over this batch; the same names in every batch.
            count: what they are to be divided by.
        """
        for name, total in totals.items():
            batch = torch.stack([total.detach().float(), total.new_tensor(count, dtype=torch.float32)])
            self._means[name] = self._means[name] + batch if name in self._means else batch

    def _check_finite(self, what: str, value: float) -> None:
        """Before it reaches a weight: a loss that is finite may still have a gradient that is not."""
        if not math.isfinite(value):
            raise TrainingError(
                f"the {what} is {value} at optimiser step {self.global_step}: "
                "lower the learning rate or look at the data of this step; nothing of it was saved"
            )

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # For dropout: no generator state is saved, so that of a resumed run must follow from its position.
        torch.manual_seed(stable_hash(self._seed, "batch", self.current_epoch, batch_idx, self.global_rank))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self._sums is not None:
            raise ConfigError(
                "a checkpoint within an optimiser step would lose its gradients: trainer.val_check_interval must be a "
                f"whole number of steps of {self.trainer.accumulate_grad_batches} batches"
            )
        parameters = self.named_parameters(remove_duplicate=False)
        frozen = {name for name, parameter in parameters if not parameter.requires_grad}
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name: value for name, value in state.items() if name not in frozen}

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        assert self._sums is not None
        sums = cast(Tensor, self.trainer.strategy.reduce(self._sums, reduce_op="sum")).tolist()
        self._sums = None
        for number, (name, loss) in enumerate(self.losses().items()):
            total, count = sums[number]
            scale = 1.0 / max(count, 1e-8)
            gradients = [parameter.grad for parameter in loss.parameters() if parameter.grad is not None]
            for gradient in gradients:
                gradient.mul_(scale)
            norm = torch.nn.utils.get_total_norm(gradients)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            self._check_finite(f"norm of the {name}'s gradient", float(norm))
            suffix = f"/{name}" if number else ""
            self.log(f"loss{suffix}", total * scale)
            current().facts[f"loss{suffix}"] = total * scale
            self.log(f"grad_norm{suffix}", norm)
            self.log(f"lr{suffix}", optimizer.param_groups[number]["lr"])
        if self._means:
            means = cast(Tensor, self.trainer.strategy.reduce(torch.stack([*self._means.values()]), reduce_op="sum"))
            self.log_dict({name: total / count for name, (total, count) in zip(self._means, means, strict=True)})
            self._means = {}

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        losses = self.losses().values()
        if len(losses) == 1:
            return super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
        if gradient_clip_algorithm == "value":
            raise ConfigError("several losses are clipped by norm: leave trainer.gradient_clip_algorithm out")
        for loss in losses:
            if clip := gradient_clip_val if loss.clip is None else loss.clip:
                torch.nn.utils.clip_grad_norm_(loss.parameters(), clip)


class Training(BaseTraining):
    """Trains a policy.

    Args:
        policy: what is trained.
        optimizer: how.
        lora: train adapters in place of the policy's weights; None trains them all.
        gradient_checkpointing: recompute activations in the backward pass, for memory.
    """

    policy: Policy
    model: PreTrainedModel

    def __init__(
        self, policy: Policy, optimizer: Optimizer, *, lora: LoRA | None = None, gradient_checkpointing: bool = False
    ) -> None:
        super().__init__(optimizer)
        self.policy, self.model = policy, policy.model
        if lora is not None:
            lora.apply(policy)
        if gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.model.train()  # models are loaded in evaluation mode, and Lightning leaves modes as they are

    def export(self, folder: Path) -> None:
        """Write the trained policy to `folder/model`, adapters also alone to `folder/adapter`; see `export_policy`."""
        export_policy(self.policy, folder / "model", folder / "adapter")


def export_policy(policy: Policy, folder: Path, adapter: Path) -> None:
    """Write a trained policy; called on every rank, rank 0 writes.

    Adapters are merged into it in float32. They are also written alone: loaded on the base that they were trained on,
    in its precision, they give exactly the policy that was trained.
    """
    state = full_state(policy.model)
    if not state:
        return
    Policy(whole(policy.model, state), policy.tokenizer).save(folder)
    if has_adapters(policy.model):
        save_adapters(policy, state, adapter)
