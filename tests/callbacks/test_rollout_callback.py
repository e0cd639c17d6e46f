"""Iterations in this process: what is sampled with which weights, what is trained, what is counted, what is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor

from envs.interfaces import RewardContext
from envs.packing import collate
from envs.rollout import independent_groups
from envs.types import Episode
from modules.functional.credit_inputs import CreditInputs
from modules.grpo import GRPO
from modules.rewards.terms import Term
from modules.samplers.in_process import InProcessSampler
from modules.sequence_logprobs import sequence_logprobs
from tests.toy_rl import Asked, ask_again, learn, letters, small_policy

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


@pytest.mark.parametrize("settings", [{"micro_batch": 4}, {"micro_batch": 2}, {"micro_tokens": 600}])
def test_micro_batches_train_as_one_batch(tmp_path: Path, settings: dict[str, int]) -> None:
    whole, _, one = learn(tmp_path, iterations=1, lr=1e-2)
    cut, _, many = learn(tmp_path, iterations=1, lr=1e-2, data=settings)
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


def test_an_oracle_tells_what_share_of_searches_was_needless(tmp_path: Path) -> None:
    class Told:
        def judge(self, episode: Episode) -> Any:
            return SimpleNamespace(needless=(episode.sample == 0, False, None), unfounded=())

    plain, _, without = learn(tmp_path)
    watched, _, metrics = learn(tmp_path, rollout={"oracle": Told()})
    assert metrics["search/needless_rate"] == pytest.approx(1 / 8), "of each group of four, one search of eight"
    assert math.isnan(metrics["search/unfounded_rate"])
    assert "search/needless_rate" not in without
    assert same(watched.model.state_dict(), plain.model.state_dict())


def test_it_samples_and_scores_in_evaluation_mode_and_keeps_no_cache(tmp_path: Path) -> None:
    training: dict[str, set[bool]] = {"sampled": set(), "scored": set(), "trained": set()}
    sampler = InProcessSampler(temperature=1.0)
    policy = small_policy()
    probe = torch.nn.Dropout(0.5)
    policy.model.register_module("probe", probe)
    begun: list[bool] = []

    class Look(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            begun.append(True)
            assert not sampler._store.bytes, "the weights that made them are about to change"

    def scored(episodes: Sequence[Episode], context: Any) -> Tensor:
        training["scored"].add(probe.training)
        return letters(episodes, context)

    def forward(*_: Any) -> None:
        training["trained" if begun else "sampled"].add(probe.training)

    policy.model.get_input_embeddings().register_forward_hook(forward)
    learn(
        tmp_path,
        policy=policy,
        rewards={"x": Term(scored)},
        rollout={"sampler": sampler},
        callbacks=[Look()],
        iterations=1,
    )
    assert training == {"sampled": {False}, "scored": {False}, "trained": {True}}


def test_a_reward_may_ask_the_current_policy_and_what_it_samples_is_counted(tmp_path: Path) -> None:
    asked: list[int] = []

    def counted(episodes: Sequence[Episode], context: RewardContext) -> Tensor:
        lengths_B = ask_again(episodes, context)
        asked.append(int(lengths_B.sum()))
        return lengths_B

    _, _, metrics = learn(tmp_path, rewards={"again": Term(counted)}, questions=Asked(4), iterations=2)
    assert metrics["tokens/rewards"] == asked[-1] > 0
    assert metrics["tokens/rollout"] == pytest.approx(16 * metrics["completions/mean_length"])
    _, _, alone = learn(tmp_path, iterations=1)
    assert alone["tokens/rewards"] == 0


def test_what_a_reward_logs_is_named_after_its_term_and_unknown_values_are_left_out(tmp_path: Path) -> None:
    def noted(episodes: Sequence[Episode], context: RewardContext) -> Tensor:
        context.log("odd", torch.tensor([float(one.sample % 2) for one in episodes]))
        context.log("known", torch.tensor([0.25, float("nan"), 0.75]))
        return letters(episodes, context)

    _, _, metrics = learn(tmp_path, rewards={"noted": Term(noted), "other": Term(letters)}, iterations=1)
    assert metrics["rewards/noted/odd"] == metrics["rewards/noted/known"] == 0.5
    assert not {"rewards/other/odd", "rewards/other/known"} & set(metrics)


def test_an_iteration_s_sampling_is_a_component(tmp_path: Path) -> None:
    """Here one episode a question, four times over: its turns are shared, so they train once, with the mean credit."""

    def repeated(*arguments: Any, group_size: int, **settings: Any) -> list[Episode]:
        alone = independent_groups(*arguments, group_size=1, **settings)
        return [dataclasses.replace(one, sample=i) for one in alone for i in range(group_size)]

    def by_sample(episodes: Sequence[Episode], context: Any) -> Tensor:
        return torch.tensor([float(one.sample) for one in episodes])

    rewards = {"by_sample": Term(by_sample)}
    _, watch, _ = learn(tmp_path, rewards=rewards, rollout={"sampling": repeated}, iterations=1)
    (buffer,) = watch.buffers
    assert len(buffer) == 4, "of sixteen episodes"
    for row in buffer:
        assert row.channels["advantages"].abs().max() < 1e-6, "above and below the group's mean alike"


def test_credit_gets_everything_and_may_give_an_advantage_a_token(tmp_path: Path) -> None:
    seen: list[CreditInputs] = []

    def first_token(inputs: CreditInputs) -> Tensor:
        seen.append(inputs)
        return torch.zeros_like(inputs.old_logps_BT).index_fill(1, torch.tensor([0]), 1.0)

    _, watch, _ = learn(tmp_path, credit=first_token, iterations=1)
    ((inputs,), (buffer,)) = seen, watch.buffers
    assert inputs.group_size == 4
    assert inputs.old_logps_BT.shape == (16, int(inputs.step_lengths_BS.sum(dim=1).max()))
    for row, logps in zip(buffer, inputs.old_logps_BT, strict=True):
        trained = row.channels["advantages"][row.loss_mask_T]
        assert trained.tolist() == [1.0] + [0.0] * (len(trained) - 1)
        assert torch.equal(row.logps_T[row.loss_mask_T], logps[: len(trained)])


class Estimating(GRPO):
    """Says of every token its number in the episode, and trains on twice the advantages and on what it said."""

    def estimate(self, episodes: Sequence[Episode]) -> dict[str, Tensor]:
        assert not self.model.training, "in evaluation mode"
        counts = [sum(len(turn.action_ids) for turn in episode.turns) for episode in episodes]
        numbers_BT = torch.arange(max(counts)).expand(len(counts), -1)
        return {"values_BT": numbers_BT.float(), "old_logps_BT": -numbers_BT.float()}

    def token_channels(self, inputs: CreditInputs, advantages_BT: Tensor, kept_B: Tensor) -> dict[str, Tensor]:
        assert inputs.values_BT is not None
        return {"advantages": 2 * advantages_BT, "values": inputs.values_BT}


def test_what_the_module_estimates_reaches_credit_and_batches(tmp_path: Path) -> None:
    seen: list[CreditInputs] = []

    def ones(inputs: CreditInputs) -> Tensor:
        seen.append(inputs)
        return torch.ones_like(inputs.step_rewards_BS)

    _, watch, _ = learn(tmp_path, module=Estimating, credit=ones, iterations=1)
    ((inputs,), (buffer,)) = seen, watch.buffers
    assert inputs.values_BT is not None
    assert inputs.values_BT[0, :3].tolist() == [0, 1, 2]
    assert inputs.old_logps_BT[0, :3].tolist() == [0, -1, -2], "recomputed"
    assert inputs.reference_logps_BT is None
    for row, count in zip(buffer, inputs.trained_BT.sum(dim=1).tolist(), strict=True):
        assert row.channels["advantages"][row.loss_mask_T].tolist() == [2.0] * count
        assert row.channels["values"][row.loss_mask_T].tolist() == list(range(count))
        assert not row.channels["values"][~row.loss_mask_T].any()
        assert row.logps_T[row.loss_mask_T].max() < 0, "as they were sampled"


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
