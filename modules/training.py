"""What all training modules share: the optimiser, exact means over ranks and accumulated batches, and the export."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.tensor import DTensor

from common.errors import ConfigError, UserError
from common.seeds import stable_hash
from modules.lora import LoRA, has_adapters, save_adapters
from modules.optimizer import Optimizer
from modules.policy import Policy
from modules.sharding import FSDP2, full_state, shard, whole


class TrainingError(UserError):
    """Training cannot go on: a loss that is no number."""


class Training(LightningModule):
    """Trains a policy. A subclass computes sums in `training_step` and hands them to `mean_loss`.

    Sums are divided by what they count only when the optimiser steps, over all ranks and accumulated batches, so a
    step is the same however its rows were shared out.

    Args:
        policy: what is trained.
        optimizer: how.
        lora: train adapters in place of the policy's weights; None trains them all.
        gradient_checkpointing: recompute activations in the backward pass, for memory.
    """

    def __init__(
        self, policy: Policy, optimizer: Optimizer, *, lora: LoRA | None = None, gradient_checkpointing: bool = False
    ) -> None:
        super().__init__()
        self.policy, self.model, self.optimizer = policy, policy.model, optimizer
        self.strict_loading = False  # a checkpoint holds only what trains
        self._seed = torch.initial_seed()
        if lora is not None:
            lora.apply(policy)
        if gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.model.train()  # models are loaded in evaluation mode, and Lightning leaves modes as they are
        self._sums: Tensor | None = None  # of the losses of an optimiser step, and of what they count

    def configure_model(self) -> None:
        """Let a strategy that shards have its way with what trains.

        Raises:
            ConfigError: the strategy's checkpoints cannot be trusted.
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
        for module in self.children():
            if any(parameter.requires_grad for parameter in module.parameters()):
                shard(module, strategy.device_mesh["data_parallel"], mixed=mixed and module is self.model)

    def configure_optimizers(self) -> Any:
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return self.optimizer.configure(parameters, int(self.trainer.estimated_stepping_batches))

    def mean_loss(self, total: Tensor, count: Tensor) -> Tensor:
        """What `training_step` returns: its share of a mean over all ranks and batches of the optimiser step.

        Args:
            total: scalar, the sum of the losses of this batch.
            count: scalar, what the sum is to be divided by (tokens, weights, rows, pairs).

        Raises:
            TrainingError: the loss is not finite.
        """
        self._refuse_lost("loss", float(total.detach()))
        sums = torch.stack([total.detach().float(), count.detach().float()])
        self._sums = sums if self._sums is None else self._sums + sums
        # Lightning divides by the accumulated batches and DDP by the ranks: undone here.
        return total * (self.trainer.accumulate_grad_batches * self.trainer.world_size)

    def _refuse_lost(self, what: str, value: float) -> None:
        """Before it reaches a weight: a loss that is finite may still have a gradient that is not."""
        if not math.isfinite(value):
            raise TrainingError(
                f"the {what} is {value} at optimiser step {self.global_step}: "
                "lower the learning rate or look at the data of this step; nothing of it was saved"
            )

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # Dropout, where a model has any: no state of a generator is saved, so a resumed run has to come by it anew.
        torch.manual_seed(stable_hash(self._seed, "batch", self.current_epoch, batch_idx, self.global_rank))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        frozen = {name for name, one in self.named_parameters(remove_duplicate=False) if not one.requires_grad}
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name: value for name, value in state.items() if name not in frozen}

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        assert self._sums is not None
        total, count = cast(Tensor, self.trainer.strategy.reduce(self._sums, reduce_op="sum")).tolist()
        self._sums = None
        scale = 1.0 / max(count, 1e-8)
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        for gradient in gradients:
            gradient.mul_(scale)
        norm = torch.nn.utils.get_total_norm(gradients)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self._refuse_lost("gradient's norm", float(norm))
        self.log("loss", total * scale)
        self.log("grad_norm", norm)
        self.log("lr", optimizer.param_groups[0]["lr"])

    def export(self, folder: Path) -> None:
        """Write the trained policy to `folder/model`; called on every rank, written by the first.

        Adapters are merged there, in float32, and stand alone in `folder/adapter` too: on the base they were trained
        on, in its precision, they are the very policy that was trained.
        """
        state = full_state(self.model)
        if not state:
            return
        Policy(whole(self.model, state), self.policy.tokenizer).save(folder / "model")
        if has_adapters(self.model):
            save_adapters(self.model, state, folder / "adapter")
            self.policy.tokenizer.save_pretrained(str(folder / "adapter"))
