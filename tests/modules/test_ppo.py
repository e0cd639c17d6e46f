"""PPO in this process: which tokens its losses read, whose values an iteration trains on, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from common.errors import ConfigError
from envs.packing import SequenceBatch, collate, pack
from envs.types import Episode, Step, Turn
from modules.critic import new_critic, token_values
from modules.functional.credit import gae_credit
from modules.functional.credit_inputs import CreditInputs
from modules.optimizer import AdamW
from modules.ppo import PPO
from modules.reference import reference_logprobs
from modules.reward_model.model import load_reward_model
from modules.rewards.terms import Term
from modules.training import TrainingError
from tests.credits import credit_inputs_of
from tests.tiny import question
from tests.toy_rl import Watch, learn, letters, small_policy

CRITIC = {"module": PPO, "credit": gae_credit, "critic_lr": 1e-2}


def module(**settings: Any) -> PPO:
    """A module outside a Trainer, whose losses are plain sums."""
    made = PPO(small_policy(), AdamW(1e-3), **({"critic_lr": 1e-2} | settings))
    trainer = SimpleNamespace(
        accumulate_grad_batches=1, world_size=1, current_epoch=0, fit_loop=SimpleNamespace(), precision="32-true"
    )
    made._trainer = trainer  # pyright: ignore
    made.logged = {}  # pyright: ignore

    def log(name: str, value: Any, **_: Any) -> None:
        made.logged[name] = float(torch.as_tensor(value).detach())  # pyright: ignore

    made.log = log  # pyright: ignore
    made.log_dict = lambda values, **_: made.logged.update(values)  # pyright: ignore
    return made


def turn(uid: str, *ids: int, sees: tuple[int, ...] = (), trainable: bool = True) -> Turn:
    return Turn("policy", (9,), ids, (-1.0,) * len(ids), "stop", uid, observation_ids=sees, trainable=trainable)


def episodes() -> list[Episode]:
    """Policy tokens, a passage, a frozen turn's tokens and the last policy token; and a shorter episode."""
    turns = [turn("a", 3, 4, sees=(7, 8)), turn("b", 5, trainable=False), turn("c", 6)]
    long = Episode(question(), (1, 2), turns, "answered")
    short = Episode(question(identity="q2"), (1,), [turn("d", 2)], "answered")
    for one in (long, short):
        one.steps = tuple(Step("x", True, ((i, 0, len(t.action_ids)),)) for i, t in enumerate(one.turns))
    return [long, short]


def batch() -> SequenceBatch:
    """The episodes with channels by hand, NaN wherever nothing trains."""
    rows = []
    numbers = {"advantages": [0.5, -1.0, 2.0, 1.0], "values": [0.1, -0.2, 0.3, 0.0], "returns": [1.0, 1.0, 1.0, 0.2]}
    for episode, part in zip(episodes(), (slice(0, 3), slice(3, 4)), strict=True):
        row = pack(episode.sequences()[0])
        for name, values in numbers.items():
            row.channels[name] = torch.full((len(row),), math.nan)
            row.channels[name][row.loss_mask_T] = torch.tensor(values[part])
        rows.append(row)
    return collate(rows)


def test_the_value_loss_is_over_policy_tokens_and_looks_at_nothing_else() -> None:
    """A head that gives .5 everywhere: errors are by hand, and the gradient reaches four states alone."""
    made, states = module(value_clip=0.3), []
    with torch.no_grad():
        made.head.zero.fill_(0.5)
        made.head.linear.weight.fill_(1e-8)  # else no gradient passes through it

    def keep(_: Any, given: Any, __: Any) -> None:
        given[0].retain_grad()
        states.append(given[0])

    made.head.register_forward_hook(keep)
    loss = made.training_step(batch(), 0)
    loss.backward()
    sums = made._sums  # pyright: ignore
    assert sums is not None
    (_, policy_count), (value, value_count) = sums.tolist()
    # Old .1, -.2, .3, 0, held at .4, .1, .5, .3; returns 1, 1, 1, .2.
    assert value == pytest.approx((0.6**2 + 0.9**2 + 0.5**2 + 0.3**2) / 2, abs=1e-5)
    assert policy_count == value_count == 4
    assert made.logged["critic/clip_ratio"] == 0.5  # pyright: ignore
    (state_BKD,) = states
    reached = state_BKD.grad.abs().sum(dim=-1) > 0
    assert int(reached.sum()) == 2, "of four tokens two are clipped"
    assert made.head.zero.grad is not None
    assert float(made.head.zero.grad) == pytest.approx((0.5 - 1.0) + (0.5 - 0.2), abs=1e-5)


def test_each_loss_trains_its_own_model() -> None:
    made = module()
    with torch.no_grad():
        made.head.linear.weight.fill_(0.1)
    made.training_step(batch(), 0).backward()
    policy = {name: one.grad.clone() for name, one in made.model.named_parameters() if one.grad is not None}
    assert any(gradient.any() for gradient in policy.values())
    assert all(one.grad is not None and one.grad.any() for one in made.head.parameters() if one.requires_grad)
    made.zero_grad()
    made.policy_loss(batch(), 0).backward()
    for name, one in made.model.named_parameters():
        assert one.grad is not None
        assert torch.equal(one.grad, policy[name]), "as without a critic"
    assert all(one.grad is None or not one.grad.any() for one in made.critic_model.parameters())


def test_both_have_their_own_learning_rate() -> None:
    optimizer = module(critic_lr=0.01)
    optimizer.trainer.estimated_stepping_batches = 10  # pyright: ignore
    groups = optimizer.configure_optimizers()["optimizer"].param_groups
    assert [group["lr"] for group in groups] == [1e-3, 1e-2]
    owned = [{id(one) for one in group["params"]} for group in groups]
    assert not owned[0] & owned[1]
    assert len(owned[0] | owned[1]) == sum(one.requires_grad for one in optimizer.parameters())


def inputs(**more: Any) -> CreditInputs:
    """Of the episodes: six sampled tokens, of which four train."""
    given = {
        "step_rewards_BS": torch.zeros(2, 3),
        "step_mask_BS": torch.tensor([[True, True, True], [True, False, False]]),
        "outcome_B": torch.tensor([1.0, 0.4]),
        "group_size": 1,
        "step_lengths_BS": torch.tensor([[2, 1, 1], [1, 0, 0]]),
        "trained_BT": torch.tensor([[True, True, False, True], [True, False, False, False]]),
        "values_BT": torch.tensor([[0.1, -0.2, 9.0, 0.3], [0.0, 9.0, 9.0, 9.0]]),
    }
    return credit_inputs_of(**(given | more))


def test_returns_are_advantages_and_values_and_only_then_are_advantages_whitened() -> None:
    plain, white = module(whiten=False), module()
    advantages_BT = gae_credit(inputs())
    assert advantages_BT[0].tolist() == pytest.approx([0.9, 1.2, 0, 0.7])
    kept_B = torch.tensor([True, True])
    channels = plain.token_channels(inputs(), advantages_BT, kept_B)
    assert torch.equal(channels["advantages"], advantages_BT)
    assert channels["returns"].tolist() == [pytest.approx([1, 1, 0, 1]), pytest.approx([0.4, 0, 0, 0])]
    logged = {name: float(value) for name, value in plain.logged.items()}  # pyright: ignore
    assert logged["critic/values/mean"] == pytest.approx(0.05)
    assert logged["critic/returns/mean"] == pytest.approx(0.85)
    left = sum(error**2 for error in (0.9, 1.2, 0.7, 0.4)) / 4 - 0.8**2
    assert logged["critic/explained_variance"] == pytest.approx(1 - left / (0.6**2 * 3 / 16))
    whitened = white.token_channels(inputs(), advantages_BT, kept_B)
    known = [(one - 0.8) / math.sqrt(left) for one in (0.9, 1.2, 0.7, 0.4)]
    assert whitened["advantages"][0].tolist() == pytest.approx([known[0], known[1], 0, known[2]], abs=1e-5)
    assert whitened["advantages"][1].tolist() == pytest.approx([known[3], 0, 0, 0], abs=1e-5)
    assert torch.equal(whitened["returns"], channels["returns"])


def test_whitening_and_explained_variance_are_over_all_ranks() -> None:
    """Two ranks with an episode each are one with both."""
    whole = module().token_channels(inputs(), gae_credit(inputs()), torch.tensor([True, True]))
    parts = [
        inputs(**{name: value[row : row + 1] for name in names if isinstance(value := getattr(inputs(), name), Tensor)})
        for row in (0, 1)
        for names in [[field.name for field in dataclasses.fields(CreditInputs)]]
    ]
    sums: list[list[Tensor]] = []  # what each rank adds, in the order of the calls
    for part in parts:
        seen: list[Tensor] = []
        listening = dataclasses.replace(part, sum_over_ranks=lambda tensor, seen=seen: seen.append(tensor) or tensor)
        module().token_channels(listening, gae_credit(part), torch.tensor([True]))
        sums.append(seen)
    assert len(sums[0]) == len(sums[1]) == 2, "every rank makes the same calls"
    totals = [one + other for one, other in zip(*sums, strict=True)]
    for row, part in enumerate(parts):
        answers = iter(totals)
        shared = dataclasses.replace(part, sum_over_ranks=lambda _, answers=answers: next(answers))
        channels = module().token_channels(shared, gae_credit(part), torch.tensor([True]))
        assert torch.allclose(channels["advantages"], whole["advantages"][row : row + 1])


def test_an_episode_with_an_unknown_reward_trains_neither() -> None:
    made = module()
    unknown = inputs(outcome_B=torch.tensor([math.nan, 0.4]))
    assert made.trained_episodes(unknown, gae_credit(unknown)).tolist() == [False, True]
    step = inputs(step_rewards_BS=torch.tensor([[0.0, math.nan, 0.0], [0.0, math.nan, 0.0]]))
    assert made.trained_episodes(step, gae_credit(step)).tolist() == [False, True], "the second has no such step"
    channels = made.token_channels(unknown, gae_credit(unknown), torch.tensor([False, True]))
    assert channels["returns"].tolist() == [[0, 0, 0, 0], pytest.approx([0.4, 0, 0, 0])]
    assert float(made.logged["critic/returns/mean"]) == pytest.approx(0.4)  # pyright: ignore


class WatchBoth(Watch):
    """The weights of policy and critic too, before and after each iteration."""

    def weights(self, module: Any) -> dict[str, Tensor]:
        return module.state_dict()


def value_gap(weights: dict[str, Tensor], buffer: list[Any]) -> float:
    """The largest difference between stored values and those of a critic with these weights."""
    made = module()
    made.load_state_dict(weights, strict=False)
    rows = collate(buffer)
    with torch.no_grad():
        values = token_values(made.critic, rows)
    return float((values - rows.channels["values"])[rows.loss_mask_BT].abs().max())


@pytest.mark.parametrize("updates", [1, 2])
def test_update_k_trains_on_values_of_critic_k(tmp_path: Path, updates: int) -> None:
    """Old values stay those of the rollout for every update of an iteration."""
    watch = WatchBoth()
    learn(tmp_path, iterations=2, lr=1e-2, data={"updates": updates}, callbacks=[watch], **CRITIC)
    for k in range(2):
        assert value_gap(watch.before[k], watch.buffers[k]) <= 1e-5
        assert value_gap(watch.after[k], watch.buffers[k]) > 1e-3
        rows = collate(watch.buffers[k])
        sums = rows.channels["returns"] - rows.channels["values"]
        spread = (sums - rows.channels["advantages"])[rows.loss_mask_BT].std()
        assert spread > 0.01, "advantages are whitened, returns are not"


def test_a_budget_of_tokens_changes_neither_policy_nor_critic(tmp_path: Path) -> None:
    """Some of its passes have nothing to train."""
    whole, cut = WatchBoth(), WatchBoth()
    learn(tmp_path, iterations=1, callbacks=[whole], **CRITIC)
    learn(tmp_path, iterations=1, data={"micro_tokens": 200}, callbacks=[cut], **CRITIC)
    for name, weight in whole.after[0].items():
        assert torch.allclose(cut.after[0][name], weight, atol=1e-4), name


def test_a_question_needs_one_episode_and_the_critic_learns(tmp_path: Path) -> None:
    alone: dict[str, Any] = {"data": {"group_size": 1, "questions_per_iteration": 8}, "lr": 1e-3}
    _, _, first = learn(tmp_path, iterations=1, **alone, **CRITIC)
    _, _, last = learn(tmp_path, iterations=8, **alone, **CRITIC)
    assert first["critic/values/mean"] == 0
    assert first["critic/explained_variance"] == 0
    assert last["loss/value"] < first["loss/value"] / 2
    assert abs(last["critic/values/mean"] - last["critic/returns/mean"]) < first["critic/returns/mean"] / 2
    assert "reward_std" not in last, "of one there is none"


def test_rewards_that_are_all_unknown_but_one_train_that_episode_alone(tmp_path: Path) -> None:
    def first_alone(asked: Sequence[Episode], context: Any) -> Tensor:
        return torch.where(torch.arange(len(asked)) == 0, letters(asked, context), math.nan)

    _, watch, metrics = learn(tmp_path, iterations=1, rewards={"one": Term(first_alone)}, **CRITIC)
    assert len(watch.buffers[0]) == 1
    assert metrics["critic/returns/mean"] == pytest.approx(metrics["reward"])


def test_a_value_that_is_not_finite_ends_the_run_with_one_line(tmp_path: Path) -> None:
    broken = new_critic(small_policy(), small_policy())
    with torch.no_grad():
        broken.head.zero.fill_(math.inf)
    with pytest.raises(TrainingError, match=r"^iteration 0: \d+ of the critic's \d+ values are not finite: lower"):
        learn(tmp_path, critic=broken, **CRITIC)


def test_the_reference_is_asked_once_an_iteration(tmp_path: Path) -> None:
    """Its log-probs are in the batch: in the reward by the credit's weight, in the loss by the module's."""
    made, watch, metrics = learn(tmp_path, iterations=1, reference=small_policy(5), kl_weight=0.1, **CRITIC)
    rows = collate(watch.buffers[0])
    expected = reference_logprobs(made.reference, made.model, rows, made.temperature)
    assert torch.allclose(rows.channels["reference_logps"], expected, atol=1e-5)
    assert metrics["kl"] > 0


def test_it_exports_a_critic_that_another_run_begins_at(tmp_path: Path) -> None:
    made, _, _ = learn(tmp_path, iterations=1, lr=1e-2, **CRITIC)
    made.export(tmp_path)
    again = load_reward_model(tmp_path / "critic", device="cpu")
    state = again.policy.model.state_dict()
    assert all(torch.equal(one, state[name]) for name, one in made.critic_model.state_dict().items())
    assert torch.equal(again.head.zero, made.head.zero)
    assert again.head.zero != 0
    assert (tmp_path / "model" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"critic_lr": 0.0}, "critic_lr 0.0, value_clip 0.5: both must be > 0"),
        ({"value_clip": 0.0}, "both must be > 0"),
        ({"kl_weight": 0.1}, "kl_weight needs a reference"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        module(**settings)
