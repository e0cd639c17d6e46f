"""Direct preference optimisation of single turns (Rafailov et al. 2023; ReasonRAG, arXiv 2505.14069).

A pair is two answers of the policy to one context, of which one is better. Only their own tokens count: what came
before is context, also where the policy wrote it.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from common.errors import ConfigError
from envs.packing import TurnPairBatch
from modules.functional.losses import dpo_loss
from modules.gathered_rows import each_once
from modules.lora import LoRA
from modules.optimizer import Optimizer
from modules.policy import Policy
from modules.reference import frozen_reference, reference_logprobs
from modules.sequence_logprobs import sequence_logprobs
from modules.training import Training

_MEASURES = ("margin", "accuracy", "chosen_drift", "rejected_drift")


class DPO(Training):
    """Trains a policy to prefer the better of two turns in one context.

    Logged for every optimiser step, and for the held-out pairs as `dpo/val_*`: `dpo/margin`, by which the better turn
    leads in the loss; `dpo/accuracy`, the share of pairs in which it leads at all; `dpo/chosen_drift` and
    `dpo/rejected_drift`, how far the summed log-probs of the turns have moved from the reference, in nats. A falling
    `chosen_drift` says that the policy learns to avoid the worse turns and forgets the better ones with them.

    Args:
        policy: what is trained.
        optimizer: how.
        reference: the frozen reference. Where it is the policy's own component it is the policy as it is now: the
            model with its adapters disabled where `lora` trains adapters, else a copy. Without one there is no drift.
        beta: how much a nat counts.
        reference_free: leave the reference out of the loss, as if it found all turns equally likely; a reference that
            is given still measures the drift.

    Raises:
        ConfigError: `beta` is not positive, or there is no reference and `reference_free` is not set.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        *,
        reference: Policy | None = None,
        beta: float = 0.3,
        reference_free: bool = False,
        lora: LoRA | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        if beta <= 0:
            raise ConfigError(f"beta {beta}: it must be above 0")
        if reference is None and not reference_free:
            raise ConfigError(
                "there is no reference: give one, the policy's own component say, or reference_free: true"
            )
        if reference is not None:
            reference = frozen_reference(reference, policy, lora)
        super().__init__(policy, optimizer, lora=lora, gradient_checkpointing=gradient_checkpointing)
        self.reference, self.beta, self.reference_free = reference, beta, reference_free
        self._held_out: list[Tensor] = []

    def training_step(self, batch: TurnPairBatch, index: int) -> Tensor:
        logps_N4 = self._logprobs(batch)
        self.log_means(self._named("dpo/", self._measures(logps_N4.detach()).sum(dim=0)), len(batch))
        return self.mean_loss(self._loss(logps_N4) * len(batch), logps_N4.new_tensor(len(batch)))

    def validation_step(self, batch: TurnPairBatch, index: int) -> None:
        numbers_N1 = batch.number_N[:, None].double()
        self._held_out.append(torch.cat([numbers_N1, self._logprobs(batch).double()], dim=1))

    def on_validation_epoch_end(self) -> None:
        gathered = cast(Tensor, self.all_gather(torch.cat(self._held_out)))
        self._held_out = []
        logps_N4 = each_once(gathered.reshape(-1, 5))[:, 1:]
        self.log("val_loss", self._loss(logps_N4))
        self.log_dict(self._named("dpo/val_", self._measures(logps_N4).mean(dim=0)))

    def _logprobs(self, batch: TurnPairBatch) -> Tensor:
        """`[N, 4]`: of each pair the summed log-probs of chosen and rejected turn, by the policy and by the reference.

        Those of a reference that there is not are 0.
        """
        reference_2N = torch.zeros(2 * len(batch), device=self.device)
        if self.reference is not None:
            reference_2N = reference_logprobs(self.reference, self.model, batch.sequences).sum(dim=1)
        policy_2N = sequence_logprobs(self.model, batch.sequences).sum(dim=1)
        return torch.stack([*policy_2N.chunk(2), *reference_2N.chunk(2)], dim=1)

    def _loss(self, logps_N4: Tensor) -> Tensor:
        policy, reference = logps_N4[:, :2], logps_N4[:, 2:]
        reference = torch.zeros_like(reference) if self.reference_free else reference
        return dpo_loss(*policy.T, *reference.T, beta=self.beta)

    def _measures(self, logps_N4: Tensor) -> Tensor:
        """`[N, 4]`, the measures of every pair."""
        drift_N2 = logps_N4[:, :2] - logps_N4[:, 2:]
        chosen_N, rejected_N = (logps_N4[:, :2] if self.reference_free else drift_N2).T
        margin_N = self.beta * (chosen_N - rejected_N)
        return torch.stack([margin_N, (margin_N > 0).float(), *drift_N2.T], dim=1)

    def _named(self, prefix: str, values: Tensor) -> dict[str, Tensor]:
        """The measures by name, without those of a reference that there is not."""
        has_reference = self.reference is not None
        named = zip(_MEASURES, values, strict=True)
        return {prefix + name: value for name, value in named if has_reference or not name.endswith("drift")}
