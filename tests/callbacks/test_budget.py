"""A budget of tokens: when it ends a run, how the learning rate follows it, what is refused."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from callbacks.budget import TokenBudget
from callbacks.rollout import RolloutCallback, rollout_of
from common.costs import JUDGE_CALLS
from common.errors import ConfigError
from datamodules.question_data import QuestionData
from envs.interfaces import RewardContext
from envs.requests import Request
from envs.sampling import take_turns
from envs.types import Episode
from modules.grpo import GRPO
from modules.optimizer import AdamW
from modules.rewards.terms import Term
from modules.samplers.in_process import InProcessSampler
from tests.toy_rl import TERMS, Asked, environment, learn, small_policy
from tests.toy_training import Slope, quiet_trainer


class Ledger(Callback):
    """What the rollout had counted, and the learning rate, at the start of every iteration's updates."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.rates: list[float] = []
        self.last: list[bool] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        rollout = rollout_of(trainer)
        assert rollout is not None
        if batch_idx == 0:
            self.tokens.append(rollout.counts["cost/tokens/policy"])
            self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.last.append(trainer.should_stop)


def spent(folder: Path, max_tokens: int | None, iterations: int, **settings: Any) -> Ledger:
    ledger = Ledger()
    budget = [] if max_tokens is None else [TokenBudget(max_tokens)]
    learn(folder, iterations=iterations, callbacks=[*budget, ledger], **settings)
    return ledger


def test_the_last_iteration_is_the_one_that_spends_the_budget(tmp_path: Path) -> None:
    one, two, three, four = spent(tmp_path, None, 4).tokens
    assert 0 < one < two < three < four
    assert spent(tmp_path, two, 4).tokens == [one, two]
    assert spent(tmp_path, two + 1, 4).tokens == [one, two, three]
    ledger = spent(tmp_path, 1, 4)
    assert (ledger.tokens, ledger.last) == ([one], [True]), "and callbacks see at its end that it is the last"


def test_every_update_of_the_last_iteration_is_made(tmp_path: Path) -> None:
    steps: list[int] = []

    class Steps(Callback):
        def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
            steps.append(trainer.global_step)

    learn(tmp_path, iterations=3, data={"updates": 4}, callbacks=[Steps(), TokenBudget(1)])
    assert steps == [4]


def test_the_learning_rate_falls_with_the_tokens_that_were_sampled_before(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ledger, policy = Ledger(), small_policy()
    rollout = RolloutCallback(environment(policy), InProcessSampler(temperature=1.0), rewards=TERMS)
    callbacks = [rollout, TokenBudget(600), ledger]
    trainer = quiet_trainer(max_epochs=9, default_root_dir=tmp_path, callbacks=callbacks)
    module = GRPO(policy, AdamW(1e-3, floor=0.2), credit=lambda inputs: torch.zeros(inputs.step_rewards_BS.shape))
    trainer.fit(module, datamodule=QuestionData(Asked(), questions_per_iteration=4, group_size=4))
    assert 2 < len(ledger.tokens) < 9
    assert ledger.tokens[-2] < 600 <= ledger.tokens[-1]
    before = [0, *ledger.tokens[:-1]]
    assert ledger.rates == pytest.approx([1e-3 * (0.2 + 0.8 * (1 - tokens / 600)) for tokens in before])


def ask_again(episodes: Sequence[Episode], context: RewardContext) -> Tensor:
    """The lengths of one more first turn of every episode."""
    assert context.sampler is not None
    begun = [dataclasses.replace(episode, turns=[], status=None) for episode in episodes]
    turns = take_turns(context.sampler, [Request(one, (), stop=(), max_tokens=4, seed=one.sample) for one in begun])
    context.sampler.release(begun)
    return torch.tensor([float(len(turn.action_ids)) for turn in turns])


def judged(episodes: Sequence[Episode], context: RewardContext) -> Tensor:
    context.counts[JUDGE_CALLS] += 2
    return torch.zeros(len(episodes))


def test_what_rewards_ask_the_policy_and_judges_is_in_the_costs(tmp_path: Path) -> None:
    plain = spent(tmp_path, None, 1).tokens[0]
    rewards = TERMS | {"again": Term(ask_again, weight=0.0), "judged": Term(judged, weight=0.0)}
    _, watch, metrics = learn(tmp_path, iterations=1, rewards=rewards)
    asked = metrics["tokens/rewards"]
    assert asked == 16 * metrics["rewards/again/mean"] > 0
    assert metrics["tokens/rollout"] == plain == sum(int(row.loss_mask_T.sum()) for row in watch.buffers[0])
    assert metrics["cost/tokens/policy"] == plain + asked
    assert metrics["cost/judge_calls"] == 2
    _, _, metrics = learn(tmp_path, iterations=3, rewards=rewards)
    assert metrics["cost/judge_calls"] == 6


def test_a_run_that_max_epochs_ends_before_its_budget_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "callbacks.budget"):
        (tokens,) = spent(tmp_path, 10**6, 1).tokens
    assert f"max_epochs 1 ended the run with {tokens} of max_tokens 1000000 sampled" in caplog.text
    caplog.clear()
    spent(tmp_path, tokens, 1)
    assert "max_tokens" not in caplog.text


def test_a_budget_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_tokens 0 must be at least 1"):
        TokenBudget(0)
    with pytest.raises(ConfigError, match=r"needs a callbacks\.rollout:RolloutCallback"):
        TokenBudget(1).setup(Trainer(logger=False, accelerator="cpu"), Slope(), "fit")

    class Forgets(Counter[str]):
        def __setitem__(self, name: str, count: int) -> None:
            """Of what is counted nothing is kept."""

    silent = InProcessSampler(temperature=1.0)
    silent.counts = Forgets()
    with pytest.raises(ConfigError, match="a sampler that counts its tokens in `counts`: InProcessSampler does not"):
        learn(tmp_path, iterations=1, callbacks=[TokenBudget(1)], rollout={"sampler": silent})
