"""GRPO outside a Trainer, and a batch of sampled episodes for it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from envs.packing import CHANNELS, SequenceBatch, collate, pack
from envs.rollout import rollout
from envs.types import Episode
from modules.functional.credit import dual_granularity_credit
from modules.grpo import GRPO
from modules.optimizer import AdamW
from modules.policy import Policy
from modules.reference import reference_logprobs
from modules.samplers.in_process import InProcessSampler
from tests.toy_rl import Asked, environment, small_policy

TEMPERATURE = 0.7


def sampled() -> list[Episode]:
    """Eight episodes, of one to three turns; three with passages."""
    policy = small_policy()
    sampler = InProcessSampler(policy, temperature=TEMPERATURE)
    episodes = rollout(environment(policy), sampler, list(Asked(8)), seed=4, samples=16)
    searching = [one for one in episodes if any(turn.observation_ids for turn in one.turns)]
    chosen = searching[:3] + [one for one in episodes if one not in searching][:5]
    assert len(chosen) == 8
    assert {len(one.turns) for one in chosen} == {1, 2, 3}
    return chosen


def packed() -> SequenceBatch:
    """Episodes of a random policy with passages in them, and an advantage for every step."""
    rows = []
    for number, episode in enumerate(sampled()):
        for sequence in episode.sequences():
            row = pack(sequence)
            advantages = torch.tensor([1.0, -0.5, 0.3]) * (number + 1)
            row.channels["advantages"] = advantages[row.step_index_T.long()].masked_fill(~row.loss_mask_T, 0.0)
            rows.append(row)
    return collate(rows)


def module(policy: Policy | None = None, **settings: Any) -> GRPO:
    """A module outside a Trainer, whose loss is the plain sum."""
    made = GRPO(
        policy or small_policy(), AdamW(1e-3), credit=dual_granularity_credit, temperature=TEMPERATURE, **settings
    )
    made._trainer = SimpleNamespace(accumulate_grad_batches=1, world_size=1)  # pyright: ignore
    made.logged = {}  # pyright: ignore

    def log(name: str, value: Any, **_: Any) -> None:
        made.logged[name] = float(torch.as_tensor(value).detach())  # pyright: ignore

    made.log = log  # pyright: ignore
    return made


def step(made: GRPO, batch: SequenceBatch) -> tuple[float, dict[str, Tensor]]:
    """The sum that a batch gives, and its gradients."""
    made.zero_grad()
    if made.reference is not None:
        batch = changed(batch, reference_logps=reference_logprobs(made.reference, made.model, batch, made.temperature))
    loss = made.training_step(batch, 0)
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}


def changed(batch: SequenceBatch, **tensors: Tensor) -> SequenceBatch:
    """The batch with other tensors; advantages may be among them."""
    channels = batch.channels | {name: tensors.pop(name) for name in tuple(tensors) if name in CHANNELS}
    return replace(batch, channels=channels, **tensors)
