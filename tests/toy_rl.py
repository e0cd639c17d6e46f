"""Reinforcement learning made tiny: a policy with seventeen tokens, and rewards that it gets by writing one letter."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch import Callback, Trainer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerFast

from callbacks.rollout import RolloutCallback
from datamodules.question_data import QuestionData
from envs.interfaces import Retriever, RewardContext, Sampler
from envs.protocols.prorag import TAGS, ProRAG
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.types import Document, Episode, Limits, Question
from modules.critic import new_critic
from modules.functional.credit import dual_granularity_credit
from modules.grpo import GRPO
from modules.optimizer import AdamW
from modules.policy import Policy
from modules.ppo import PPO
from modules.rewards.terms import Term
from modules.samplers.in_process import InProcessSampler
from modules.training import Training
from tests.tiny import CHAT_TEMPLATE, FixedRetriever, tiny_policy
from tests.toy_training import quiet_trainer

LIMITS = Limits(turns=3, turn_tokens=8, total_tokens=256)


def small_tokenizer() -> PreTrainedTokenizerFast:
    """Three letters, two blanks and the tags: a random policy soon ends a turn, searches, or ends its message."""
    alphabet = [*"abc", "Ġ", "Ċ"]
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", *TAGS]})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def small_policy(seed: int = 0) -> Policy:
    """A random policy over the small tokenizer."""
    return tiny_policy(small_tokenizer(), seed)


def save_policy(folder: Path) -> Path:
    """The random policy on disk, where a config finds it."""
    small_policy().save(folder)
    return folder


def save_critic(folder: Path) -> None:
    """A critic on disk whose head is not 0, so that its first gradients reach the backbone."""
    critic = new_critic(small_policy(1), small_policy())
    with torch.no_grad():
        critic.head.linear.weight.copy_(torch.linspace(-0.5, 0.5, 32))
    critic.save(folder)


class Asked:
    """A source of questions."""

    def __init__(self, count: int = 8) -> None:
        self.count = count
        self.skipped: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Question]:
        return (Question(f"q{i}", "abc"[i % 3] * (1 + i // 3), ("a",)) for i in range(self.count))

    def documents(self) -> Iterator[Document]:
        return iter(())


def retriever() -> FixedRetriever:
    """Finds one passage, whatever is asked."""
    return FixedRetriever([Document("d", "ab", "bad cab")])


def letters(episodes: Sequence[Episode], context: RewardContext) -> Tensor:
    """An outcome: the share of an episode's sampled tokens that are an `a`."""
    return torch.tensor([_share([i for turn in episode.turns for i in turn.action_ids]) for episode in episodes])


def some_letters(episodes: Sequence[Episode], context: RewardContext) -> Tensor:
    """The same for two questions of three; all episodes of the others are alike."""
    told_apart = torch.tensor([int(episode.question.id[1:]) % 3 > 0 for episode in episodes])
    return letters(episodes, context) * told_apart


def step_letters(episodes: Sequence[Episode], context: RewardContext) -> list[Tensor]:
    """The same for each step."""
    return [torch.tensor([_share(turn.action_ids) for turn in episode.turns]) for episode in episodes]


def ask_again(episodes: Sequence[Episode], context: RewardContext) -> Tensor:
    """The length of one more first turn by the current policy, for the episodes of one question alone; else 0.

    So one rank runs the model and the other does not.
    """
    assert context.sampler is not None
    asked = [dataclasses.replace(one, turns=[], status=None) for one in episodes if one.question.id == "q0"]
    context.sampler.submit([Request(one, (), stop=(), max_tokens=4, seed=one.sample) for one in asked])
    finished = [pair for _ in asked for pair in context.sampler.collect()]
    context.sampler.release(asked)
    lengths = iter([float(len(turn.action_ids)) for _, turn in finished])
    return torch.tensor([next(lengths) if one.question.id == "q0" else 0.0 for one in episodes])


def _share(ids: Sequence[int]) -> float:
    return sum(i == 0 for i in ids) / max(len(ids), 1)


TERMS = {"letters": Term(letters), "step_letters": Term(step_letters, level="step")}


class _Recording(Training):
    """Writes the gradients of every optimiser step, as the optimiser gets them but for clipping."""

    def __init__(self, policy: Policy, optimizer: AdamW, folder: str, **settings: Any) -> None:
        super().__init__(policy, optimizer, **settings)
        self.folder = folder

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        super().on_before_optimizer_step(optimizer)
        gradients = {name: _whole(p.grad) for name, p in self.named_parameters() if p.grad is not None}
        torch.save(gradients, Path(self.folder) / f"gradients-{self.trainer.global_rank}-{self.global_step}.pt")


class RecordingGRPO(_Recording, GRPO):
    """GRPO that writes its gradients."""


class RecordingPPO(_Recording, PPO):
    """PPO that writes its gradients."""


def _whole(gradient: Tensor) -> Tensor:
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


class Watch(Callback):
    """Keeps, for every iteration, the buffer, the weights that it was sampled with, and those it left."""

    def __init__(self) -> None:
        self.buffers: list[list[Any]] = []
        self.before: list[dict[str, Tensor]] = []
        self.after: list[dict[str, Tensor]] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            buffer = trainer.datamodule._buffer  # pyright: ignore
            self.buffers.append([row for episode in buffer._episodes for row in episode])
            self.before.append({name: one.clone() for name, one in self.weights(pl_module).items()})

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.after.append({name: one.clone() for name, one in self.weights(pl_module).items()})

    def weights(self, module: Any) -> dict[str, Tensor]:
        """What is watched: the policy's alone."""
        return module.model.state_dict()


def learn(
    folder: Path,
    *,
    iterations: int = 2,
    lr: float = 1e-3,
    beta: float = 0.3,
    temperature: float = 1.0,
    rewards: dict[str, Any] | None = None,
    questions: Asked | None = None,
    policy: Policy | None = None,
    data: dict[str, Any] | None = None,
    rollout: dict[str, Any] | None = None,
    place: RetrievalEnvironment | None = None,
    checkpoints: bool = False,
    callbacks: Sequence[Callback] = (),
    module: type[Any] = GRPO,
    trainer: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[Any, Watch, dict[str, Any]]:
    """Train in this process; returns the module, what was watched and the metrics that were logged last."""
    torch.manual_seed(0)
    policy = policy or small_policy()
    credit = partial(dual_granularity_credit, beta=beta)
    learner = module(policy, AdamW(lr, floor=1.0), **({"credit": credit, "temperature": temperature} | settings))
    watch = Watch()
    asked = {"sampler": InProcessSampler(temperature=temperature), "rewards": rewards or TERMS} | (rollout or {})
    sample = RolloutCallback(place or environment(policy), **asked)
    fit = quiet_trainer(
        max_epochs=iterations,
        enable_checkpointing=checkpoints,
        default_root_dir=folder,
        callbacks=[sample, *callbacks, watch],
        **(trainer or {}),
    )
    data = {"questions_per_iteration": 4, "group_size": 4} | (data or {})
    fit.fit(learner, datamodule=QuestionData(questions or Asked(), **data))
    return learner, watch, {name: float(value) for name, value in fit.callback_metrics.items()}


def environment(
    policy: Policy, finds: Retriever | None = None, limits: Limits = LIMITS, **settings: Any
) -> RetrievalEnvironment:
    """ProRAG's format over one passage, within small limits."""
    return RetrievalEnvironment(prorag(policy), finds or retriever(), limits=limits, **settings)


def prorag(policy: Policy) -> ProRAG:
    """The protocol over a policy's own tokenizer."""
    return ProRAG(policy.tokenizer, instruction="")  # pyright: ignore[reportArgumentType]


class KillOnce(Callback):
    """SIGKILLs its own process at a moment of an iteration, once; beside the flag it writes the epochs that ended."""

    def __init__(self, flag: str, moment: str, iteration: int = 1) -> None:
        self.flag, self.moment, self.iteration = flag, moment, iteration

    def at(self, moment: str, iteration: int) -> None:
        if (moment, iteration) == (self.moment, self.iteration) and not Path(self.flag).exists():
            Path(self.flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx < 2:
            self.at(("sampled", "update")[batch_idx], trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.at("trained", trainer.current_epoch)
        with open(f"{self.flag}.epochs", "a") as f:
            f.write(f"{trainer.current_epoch} ")


class WatchedRollout(RolloutCallback):
    """Writes beside the flag how often a rank samples a batch of turns; the second time, its process may be killed."""

    def __init__(
        self, environment: RetrievalEnvironment, sampler: Sampler, *, killer: KillOnce, **settings: Any
    ) -> None:
        super().__init__(environment, sampler, **settings)
        self.killer = killer

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        collect, calls = InProcessSampler.collect, 0

        def counted(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 2:
                self.killer.at("rollout", trainer.current_epoch)
            return collect(*arguments)

        with patch.object(InProcessSampler, "collect", counted):
            super().on_train_epoch_start(trainer, pl_module)
        with open(f"{self.killer.flag}.calls-{trainer.global_rank}", "a") as f:
            f.write(f"{calls} ")
