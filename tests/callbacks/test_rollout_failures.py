"""Iterations that cannot score or retrieve, or are set wrongly: what is left out, what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from callbacks.rollout import RolloutCallback
from callbacks.scored_groups import ScoringError
from common.errors import ConfigError, RetrievalError
from datamodules.question_data import QuestionData
from envs.rollout import independent_groups
from envs.types import Episode, Hit, Limits
from modules.functional.credit_inputs import CreditInputs, MissingInput
from modules.rewards.format import step_format
from modules.rewards.terms import Term
from modules.samplers.in_process import InProcessSampler
from tests.tiny import byte_tokenizer, tiny_policy
from tests.toy_rl import TERMS, Asked, environment, learn, letters, retriever, small_policy
from tests.toy_training import Slope


def constant(episodes: Sequence[Episode], context: Any, *, value: float = 0.7) -> Tensor:
    return torch.full((len(episodes),), value)


def test_rollouts_that_are_all_malformed_train_nothing_by_their_format(tmp_path: Path) -> None:
    module, _, metrics = learn(
        tmp_path,
        rewards={"format": Term(step_format, level="step"), "answer": Term(partial(constant, value=0.0))},
        place=environment(small_policy(), limits=Limits(turns=2, turn_tokens=1, total_tokens=128)),
    )
    assert metrics["format/valid_rate"] == metrics["format/valid_episodes"] == metrics["reward"] == 0
    assert metrics["stop/malformed"] + metrics["stop/step_budget"] == 1
    begun = small_policy().model.state_dict()
    assert all(torch.equal(value, begun[name]) for name, value in module.model.state_dict().items())
    assert not any(math.isnan(value) for name, value in metrics.items() if name in ("loss", "entropy", "grad_norm"))


def test_episodes_that_could_not_be_scored_train_nothing_and_are_counted(tmp_path: Path) -> None:
    def half(episodes: Sequence[Episode], context: Any) -> Tensor:
        return torch.tensor([float("nan") if e.sample % 2 else float(e.sample) for e in episodes])

    _, watch, metrics = learn(tmp_path, rewards={"half": Term(half)}, iterations=1)
    assert len(watch.buffers[0]) == 8
    assert metrics["unscored"] == metrics["rewards/half/unscored"] == 0.5
    assert metrics["reward"] == 1, "over those that were scored"


def test_a_reward_that_is_out_of_order_ends_the_run_with_one_line(tmp_path: Path) -> None:
    def down(episodes: Sequence[Episode], context: Any) -> list[Tensor]:
        raise TimeoutError("no answer in 30 s")

    with pytest.raises(ScoringError, match=r"^iteration 0: reward prm scored none of 16 episodes: no ans"):
        learn(tmp_path, rewards=TERMS | {"prm": Term(down, level="step")})


class Shaky:
    """A retriever that fails for every second call."""

    def __init__(self, always: bool = False) -> None:
        self.calls, self.always = 0, always

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.calls += 1
        if self.always or self.calls % 2:
            raise RetrievalError("server down")
        return retriever().search(queries, k)


def test_episodes_that_ended_in_an_error_train_nothing_and_are_counted(tmp_path: Path) -> None:
    ended: list[Episode] = []

    def seen(episodes: Sequence[Episode], context: Any) -> Tensor:
        ended.extend(episodes)
        return letters(episodes, context)

    many = {"questions": Asked(12), "data": {"questions_per_iteration": 12, "group_size": 8}, "iterations": 1}
    many |= {"rollout": {"sampling": partial(independent_groups, pool=8)}, "rewards": {"seen": Term(seen)}}
    _, watch, metrics = learn(tmp_path, place=environment(small_policy(), Shaky()), **many)
    assert 0 < metrics["stop/error"] == metrics["unscored"] < 0.5
    assert len(ended) == len(watch.buffers[0]) == round(96 * (1 - metrics["stop/error"]))
    assert all(episode.status != "error" for episode in ended)


def test_a_retriever_that_stays_down_ends_the_run_with_one_line(tmp_path: Path) -> None:
    down = environment(small_policy(), Shaky(always=True))
    with pytest.raises(RetrievalError, match="3 failed calls in a row: stopping"):
        learn(tmp_path, place=down, questions=Asked(12), data={"questions_per_iteration": 12}, iterations=9)


def test_prompts_that_leave_no_room_end_the_run_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match="no prompt leaves room for a turn"):
        learn(tmp_path, place=environment(small_policy(), limits=Limits(total_tokens=2)))


def test_without_rewards_there_is_nothing_to_learn() -> None:
    with pytest.raises(ConfigError, match="rewards is empty"):
        RolloutCallback(environment(small_policy()), InProcessSampler(temperature=1.0), rewards={})


@pytest.mark.parametrize("settings", [{"temperature": 0.5}, {"temperature": 1.0, "top_p": 0.9}])
def test_a_sampler_of_another_distribution_than_the_loss_is_an_error(tmp_path: Path, settings: dict[str, Any]) -> None:
    message = f"sampler has temperature {settings['temperature']} and top_p .* temperature 1.0 and top_p 1"
    with pytest.raises(ConfigError, match=message):
        learn(tmp_path, rollout={"sampler": InProcessSampler(**settings)})


def test_a_policy_that_cannot_read_the_protocol_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="different tokenizers"):
        learn(tmp_path, policy=tiny_policy(byte_tokenizer()), place=environment(small_policy()))


def test_a_precision_that_would_round_log_probs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bf16-true would round log-probs: use bf16-mixed"):
        learn(tmp_path, trainer={"precision": "bf16-true"})


def test_a_module_without_credit_is_an_error(tmp_path: Path) -> None:
    callback = RolloutCallback(environment(small_policy()), InProcessSampler(temperature=1.0), rewards=TERMS)
    trainer = Trainer(logger=False, enable_checkpointing=False, accelerator="cpu", max_epochs=1, callbacks=[callback])
    with pytest.raises(ConfigError, match=r"needs a module with a credit function, such as modules\.grpo:GRPO"):
        trainer.fit(Slope(), datamodule=QuestionData(Asked()))


def test_a_group_of_one_is_an_error_where_groups_are_compared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"group_size 1: .* compares the episodes of a question, at least 2"):
        learn(tmp_path, data={"group_size": 1})


def test_a_guard_of_later_updates_is_an_error_where_there_is_one_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"likelihood_weight acts from the second update .*: give data\.updates: 2"):
        learn(tmp_path, likelihood_weight=0.2)


def test_credit_that_lacks_what_it_reads_ends_the_run_with_one_line(tmp_path: Path) -> None:
    def needy(inputs: CreditInputs) -> Tensor:
        raise MissingInput("no values: a critic gives them")

    with pytest.raises(ConfigError, match="no values: a critic gives them"):
        learn(tmp_path, credit=needy)


def test_a_checkpoint_in_the_middle_of_an_iteration_is_an_error(tmp_path: Path) -> None:
    often = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=1)
    with pytest.raises(ConfigError, match="in the middle of an iteration"):
        learn(tmp_path, data={"updates": 4}, callbacks=[often], checkpoints=True)
    whole = ModelCheckpoint(dirpath=tmp_path, save_last=True)
    learn(tmp_path, data={"updates": 4}, callbacks=[whole], checkpoints=True)
    assert (tmp_path / "last.ckpt").exists()
