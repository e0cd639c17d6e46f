"""Iterations in this process: what is sampled with which weights, what is trained, what is counted, what is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from callbacks.rollout import RolloutCallback, ScoringError
from common.errors import ConfigError, RetrievalError
from envs.packing import collate
from envs.types import Episode, Hit, Limits
from modules.functional.advantages import dual_granularity
from modules.rewards.format import step_format
from modules.rewards.terms import Term
from modules.samplers.in_process import InProcessSampler
from modules.sequence_logprobs import sequence_logprobs
from tests.tiny import byte_tokenizer, tiny_policy
from tests.toy_rl import LIMITS, TERMS, Asked, learn, letters, prorag, retriever, small_policy

TEMPERATURE = 0.7


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def gap(weights: dict[str, Tensor], buffer: list[Any]) -> float:
    """The largest difference between stored log-probs and those of these weights."""
    policy = small_policy()
    policy.model.load_state_dict(weights)
    batch = collate(buffer)
    with torch.no_grad():
        logps = sequence_logprobs(policy.model, batch, TEMPERATURE)
    return float((logps - batch.logps_BT)[batch.loss_mask_BT].abs().max())


def test_update_k_trains_on_rollouts_of_policy_k(tmp_path: Path) -> None:
    module, watch, metrics = learn(tmp_path, iterations=3, lr=1e-2, temperature=TEMPERATURE)
    assert len(watch.buffers) == 3, "every epoch trains, the first too"
    for k in range(3):
        assert gap(watch.before[k], watch.buffers[k]) <= 1e-4
        assert gap(watch.after[k], watch.buffers[k]) > 1e-3
        assert not same(watch.before[k], watch.after[k])
    assert same(watch.before[0], small_policy().model.state_dict())
    assert all(same(watch.after[k], watch.before[k + 1]) for k in range(2))
    assert same(watch.after[2], module.model.state_dict())
    assert metrics["logp_gap/max"] <= 1e-4, "sampling and loss have one temperature"


def test_every_iteration_has_other_questions_and_other_random_numbers(tmp_path: Path) -> None:
    _, watch, _ = learn(tmp_path, iterations=2, lr=1e-9, questions=Asked(4))
    first, second = ([row.ids_T.tolist() for row in buffer] for buffer in watch.buffers)
    assert first != second
    assert sorted(first) != sorted(second), "the same questions and weights, but not the same episodes"


def test_a_tiny_policy_learns(tmp_path: Path) -> None:
    _, _, before = learn(tmp_path, iterations=1, lr=1e-2)
    _, _, after = learn(tmp_path, iterations=12, lr=1e-2)
    assert before["reward"] < 0.2
    assert after["reward"] > 0.4


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    weights = [learn(tmp_path, data={"seed": seed})[0].model.state_dict() for seed in (0, 0, 1)]
    assert same(weights[0], weights[1])
    assert not same(weights[0], weights[2])


@pytest.mark.parametrize("settings", [{"micro_batch": 4}, {"micro_batch": 2}])
def test_micro_batches_train_as_one_batch(tmp_path: Path, settings: dict[str, int]) -> None:
    whole, _, one = learn(tmp_path, iterations=1, lr=1e-2)
    cut, _, many = learn(tmp_path, iterations=1, lr=1e-2, data=settings, accumulate=16 // settings["micro_batch"])
    assert many["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-5)
    assert many["entropy"] == pytest.approx(one["entropy"], rel=1e-5)
    for name, weight in whole.model.state_dict().items():
        assert torch.allclose(cut.model.state_dict()[name], weight, atol=1e-4)


def test_several_updates_of_a_rollout_leave_the_policy_that_sampled(tmp_path: Path) -> None:
    class Steps(Callback):
        count = 0

        def on_before_optimizer_step(self, *_: Any) -> None:
            self.count += 1

    steps = Steps()
    _, watch, metrics = learn(
        tmp_path, iterations=2, lr=1e-2, data={"updates": 4}, callbacks=[steps], temperature=TEMPERATURE
    )
    assert steps.count == 8
    assert metrics["logp_gap/max"] <= 1e-4, "measured before the weights move"
    assert metrics["kl"] > 1e-6
    assert gap(watch.before[1], watch.buffers[1]) <= 1e-4


def constant(episodes: Sequence[Episode], context: Any, *, value: float = 0.7) -> Tensor:
    return torch.full((len(episodes),), value)


@pytest.mark.parametrize("zero_variance", ["keep", "drop"])
def test_rewards_that_are_all_equal_move_nothing(tmp_path: Path, zero_variance: str) -> None:
    flat = {"flat": Term(constant), "steps": Term(lambda e, c: [torch.ones(len(x.steps)) for x in e], level="step")}
    module, watch, metrics = learn(tmp_path, rewards=flat, zero_variance=zero_variance)
    assert same(module.model.state_dict(), small_policy().model.state_dict())
    assert metrics["frac_reward_zero_std"] == metrics["frac_reward_zero_std/process"] == 1
    assert metrics["grad_norm"] == metrics["loss"] == 0
    assert metrics["reward"] == pytest.approx(0.7)
    assert bool(watch.buffers[0]) == (zero_variance == "keep")


def test_groups_without_spread_are_dropped_whole_and_others_stay(tmp_path: Path) -> None:
    def on_one(episodes: Sequence[Episode], context: Any) -> Tensor:
        """Only one question's group has spread, and in it one episode has the mean reward."""
        return torch.tensor([(0.0, 0.5, 0.5, 1.0)[e.sample] if e.question.id == "q1" else 0.0 for e in episodes])

    settings: dict[str, Any] = {"rewards": {"one": Term(on_one)}, "questions": Asked(4), "iterations": 1}
    _, kept, _ = learn(tmp_path, **settings)
    _, dropped, metrics = learn(tmp_path, **settings, zero_variance="drop")
    assert (len(kept.buffers[0]), len(dropped.buffers[0])) == (16, 4)
    assert metrics["frac_reward_zero_std"] == 0.75


def test_rollouts_that_are_all_malformed_train_nothing_by_their_format(tmp_path: Path) -> None:
    module, _, metrics = learn(
        tmp_path,
        rewards={"format": Term(step_format, level="step"), "answer": Term(partial(constant, value=0.0))},
        rollout={"limits": Limits(turns=2, turn_tokens=1, total_tokens=128)},
    )
    assert metrics["format/valid_rate"] == metrics["format/valid_episodes"] == metrics["reward"] == 0
    assert metrics["stop/malformed"] + metrics["stop/step_budget"] == 1
    assert same(module.model.state_dict(), small_policy().model.state_dict())
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

    with pytest.raises(ScoringError, match=r"^iteration 0: reward prm could not be had for any of 16 episodes: no ans"):
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

    many = {"questions": Asked(12), "data": {"questions_per_iteration": 12}, "iterations": 1}
    shaky = RolloutCallback(prorag(small_policy()), Shaky(), rewards={"seen": Term(seen)}, advantage=dual_granularity,
                            group_size=8, limits=LIMITS, pool=8)  # fmt: skip
    _, watch, metrics = learn(tmp_path, sample=shaky, **many)
    assert 0 < metrics["stop/error"] == metrics["unscored"] < 0.5
    assert len(ended) == len(watch.buffers[0]) == round(96 * (1 - metrics["stop/error"]))
    assert all(episode.status != "error" for episode in ended)


def test_a_retriever_that_stays_down_ends_the_run_with_one_line(tmp_path: Path) -> None:
    down = RolloutCallback(prorag(small_policy()), Shaky(always=True), rewards=TERMS, advantage=dual_granularity,
                           group_size=8, limits=LIMITS, pool=8)  # fmt: skip
    with pytest.raises(RetrievalError, match="3 failed calls in a row: stopping"):
        learn(tmp_path, sample=down, questions=Asked(12), data={"questions_per_iteration": 12}, iterations=9)


def made(**settings: Any) -> RolloutCallback:
    chosen = {"rewards": TERMS, "advantage": dual_granularity, "group_size": 2} | settings
    return RolloutCallback(prorag(small_policy()), retriever(), **chosen)


def test_prompts_that_leave_no_room_end_the_run_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match="no prompt leaves room for a turn"):
        learn(tmp_path, rollout={"limits": Limits(total_tokens=2)})


def test_it_samples_in_evaluation_mode_and_forgets_what_it_kept(tmp_path: Path) -> None:
    modes: list[bool] = []
    kept: list[int] = []

    class Look(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            modes.append(pl_module.model.training)
            (callback,) = (one for one in trainer.callbacks if isinstance(one, RolloutCallback))
            assert isinstance(callback._generator, InProcessSampler)
            kept.append(len(callback._generator._kept))

    def looked(episodes: Sequence[Episode], context: Any) -> Tensor:
        return letters(episodes, context)

    policy = small_policy()
    policy.model.config.attention_dropout = 0.0
    dropped = torch.nn.Dropout(0.5)
    policy.model.register_module("probe", dropped)
    during: list[bool] = []
    policy.model.register_forward_hook(lambda *_: during.append(dropped.training))
    learn(tmp_path, policy=policy, rewards={"x": Term(looked)}, callbacks=[Look()])
    assert modes == [True, True]
    assert kept == [0, 0], "the weights that made them are gone"
    assert True in during
    assert False in during
    assert during[0] is False


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 1}, "group_size must be at least 2"),
        ({"pool": 0}, "the others 1"),
        ({"rewards": {}}, "rewards is empty"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(**settings)


def test_a_policy_that_cannot_read_the_protocol_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="different tokenizers"):
        learn(tmp_path, policy=tiny_policy(byte_tokenizer()), sample=made())


def test_a_checkpoint_in_the_middle_of_an_iteration_is_refused(tmp_path: Path) -> None:
    often = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=1)
    with pytest.raises(ConfigError, match="in the middle of an iteration"):
        learn(tmp_path, data={"updates": 4}, callbacks=[often], checkpoints=True)
    whole = ModelCheckpoint(dirpath=tmp_path, save_last=True)
    learn(tmp_path, data={"updates": 4}, callbacks=[whole], checkpoints=True)
    assert (tmp_path / "last.ckpt").exists()


def test_measures_say_what_happened(tmp_path: Path) -> None:
    ended: list[Episode] = []

    def seen(episodes: Sequence[Episode], context: Any) -> Tensor:
        ended.extend(dataclasses.replace(one) for one in episodes)
        return letters(episodes, context)

    _, _, metrics = learn(tmp_path, rewards={"seen": Term(seen, 2.0)}, iterations=1)
    turns = [turn for one in ended for turn in one.turns]
    assert metrics["completions/mean_turns"] == pytest.approx(len(turns) / 16)
    assert metrics["completions/mean_length"] == pytest.approx(sum(len(t.action_ids) for t in turns) / 16)
    assert metrics["completions/clipped_ratio"] == pytest.approx(sum(t.finish == "length" for t in turns) / len(turns))
    assert metrics["stop/malformed"] == pytest.approx(sum(one.status == "malformed" for one in ended) / 16)
    assert metrics["search/count"] == pytest.approx(sum(t.action.kind == "query" for t in turns) / 16)
    assert metrics["format/valid_rate"] == pytest.approx(sum(s.valid for one in ended for s in one.steps) / len(turns))
    raw = letters(ended, None)  # pyright: ignore
    assert metrics["rewards/seen/mean"] == pytest.approx(float(raw.mean()), abs=1e-6)
    assert metrics["reward"] == pytest.approx(2 * float(raw.mean()), abs=1e-6)
    assert metrics["rewards/seen/std"] == pytest.approx(float(raw.std(correction=0)), abs=1e-6)
    assert metrics["reward_std"] == pytest.approx(
        2 * float(raw.reshape(4, 4).std(dim=1, correction=0).mean()), abs=1e-5
    )
