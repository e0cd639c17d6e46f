"""What trains and what does not, on whole episodes; sums over batches, counts, the reference, and refusals."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from common.errors import ConfigError
from envs.packing import SequenceBatch
from modules.functional.credit import dual_granularity_credit, node_values_credit
from modules.grpo import GRPO
from modules.optimizer import AdamW
from modules.sequence_logprobs import sequence_logprobs
from tests.credits import credit_inputs_of
from tests.toy_grpo import TEMPERATURE, changed, module, packed, sampled, step
from tests.toy_rl import small_policy


@pytest.fixture(scope="module")
def batch() -> SequenceBatch:
    return packed()


def test_stored_log_probs_are_those_of_the_training_forward(batch: SequenceBatch) -> None:
    with torch.no_grad():
        logps = sequence_logprobs(small_policy().model, batch, TEMPERATURE)
    assert (logps - batch.logps_BT)[batch.loss_mask_BT].abs().max() <= 1e-4
    assert batch.logps_BT[batch.loss_mask_BT].max() < 0


def test_the_policy_s_tokens_train_and_nothing_else_does(batch: SequenceBatch) -> None:
    """The gradient of the loss by every last hidden state of whole episodes, worked out by hand."""
    policy = small_policy()
    captured: list[Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        captured.append(output.last_hidden_state)

    hook = policy.model.model.register_forward_hook(keep)
    made = module(policy)
    made.training_step(batch, 0).backward()
    hook.remove()
    (given,) = (state.grad for state in captured)
    assert given is not None
    with torch.no_grad():
        full = policy.model(input_ids=batch.ids_BT, attention_mask=batch.attention_BT).logits[:, :-1]
        chances = torch.softmax(full / TEMPERATURE, dim=-1)
        target = torch.nn.functional.one_hot(batch.ids_BT[:, 1:], chances.shape[-1])
        weight = batch.channels["advantages"][:, 1:] * batch.loss_mask_BT[:, 1:]
        by_logits = -(weight[..., None] * (target - chances)) / TEMPERATURE
        expected = by_logits @ policy.model.lm_head.weight
    assert torch.allclose(given[:, :-1], expected, atol=1e-4)
    assert expected.abs().max() > 1e-2
    untrained = given[:, :-1][~batch.loss_mask_BT[:, 1:]]
    assert len(untrained) > batch.loss_mask_BT.sum(), "prompts, scaffold, passages and padding"
    assert not untrained.any()


def test_the_mask_is_exactly_what_was_sampled(batch: SequenceBatch) -> None:
    """Beside the test above: the mask itself, token by token, from the turns."""
    for row, episode in enumerate(sampled()):
        expected = [0] * len(episode.prompt_ids)
        for turn in episode.turns:
            expected += [0] * len(turn.opening_ids) + [1] * len(turn.action_ids) + [0] * len(turn.observation_ids)
        expected += [0] * (batch.ids_BT.shape[1] - len(expected))
        assert batch.loss_mask_BT[row].int().tolist() == expected


@pytest.mark.parametrize("name", ["logps_BT", "advantages"])
def test_what_stands_at_untrained_places_changes_nothing(batch: SequenceBatch, name: str) -> None:
    made = module()
    before = step(made, batch)
    spoilt = (batch.channels | {"logps_BT": batch.logps_BT})[name].masked_fill(~batch.loss_mask_BT, float("nan"))
    after = step(made, changed(batch, **{name: spoilt}))
    assert before[0] == after[0]
    assert all(torch.equal(before[1][key], after[1][key]) for key in before[1])


@pytest.mark.parametrize("aggregate", ["token_mean", "sequence_mean", "group_sum"])
def test_rows_give_the_same_alone_or_together(batch: SequenceBatch, aggregate: Any) -> None:
    """Sums and counts add up over micro-batches, so how episodes are cut into batches says nothing."""
    made = module(aggregate=aggregate)
    whole, gradients = step(made, batch)
    count = made._count(batch)
    parts = [
        changed(batch, **{n: getattr(batch, n)[rows] for n in ("ids_BT", "attention_BT", "loss_mask_BT")},
                logps_BT=batch.logps_BT[rows], advantages=batch.channels["advantages"][rows])  # pyright: ignore
        for rows in (slice(0, 3), slice(3, None))
    ]  # fmt: skip
    losses = [step(made, part) for part in parts]
    assert sum(loss for loss, _ in losses) == pytest.approx(whole, rel=1e-5)
    assert sum(made._count(part) for part in parts) == count
    for name, gradient in gradients.items():
        assert torch.allclose(losses[0][1][name] + losses[1][1][name], gradient, atol=1e-4), name


def test_counts_are_tokens_rows_or_all_that_follows_the_prompt(batch: SequenceBatch) -> None:
    assert int(module()._count(batch)) == int(batch.loss_mask_BT.sum())
    assert int(module(aggregate="group_sum")._count(batch)) == len(batch)
    expected = 0
    for mask, attention in zip(batch.loss_mask_BT.tolist(), batch.attention_BT.tolist(), strict=True):
        expected += sum(attention) - mask.index(True)
    assert int(module(denominator="all")._count(batch)) == expected > int(batch.loss_mask_BT.sum())


def test_the_policy_that_sampled_has_no_gap_no_clip_and_no_divergence(batch: SequenceBatch) -> None:
    made = module()
    step(made, batch)
    logged = made.logged  # pyright: ignore
    assert logged["logp_gap/max"] <= 1e-4
    assert abs(logged["kl"]) <= 1e-6
    assert logged["clip_ratio/region_mean"] == 0
    with torch.no_grad():
        logits = made.model(input_ids=batch.ids_BT, attention_mask=batch.attention_BT).logits
        chances = torch.softmax(logits[:, :-1] / TEMPERATURE, dim=-1)
        entropy = -(chances * chances.log()).sum(dim=-1)[batch.loss_mask_BT[:, 1:]].mean()
    assert logged["entropy"] == pytest.approx(float(entropy), rel=1e-4)


def test_another_policy_has_all_three(batch: SequenceBatch) -> None:
    made = module(small_policy(seed=5))
    step(made, batch)
    logged = made.logged  # pyright: ignore
    assert logged["logp_gap/max"] > 0.01
    assert logged["kl"] > 0
    assert (
        0
        < logged["clip_ratio/region_mean"]
        == pytest.approx(logged["clip_ratio/low_mean"] + logged["clip_ratio/high_mean"])
    )


def test_clip_ratios_count_the_tokens_without_gradient_at_either_end(batch: SequenceBatch) -> None:
    """Of ten tokens three are clipped from below and two from above; the fourth and the third only look like it."""
    ratios = torch.tensor([[0.5, 0.5, 0.5, 0.5, 1.5, 1.5, 1.5, 1.0, 1.0, 1.0, 0.1]])
    advantages = torch.tensor([[-1.0, -2.0, -3.0, 1.0, 1.0, 2.0, -1.0, 1.0, -1.0, 0.0, -1.0]])
    mask = torch.tensor([[True] * 10 + [False]])
    ids, old = torch.zeros((1, 11), dtype=torch.long), torch.full((1, 11), -1.0)
    literal = SequenceBatch(ids, torch.ones_like(mask), mask, ids, old, {"advantages": advantages})
    made = module()
    logps = old + ratios.log()
    made._log(literal, 0, logps, old, torch.zeros_like(old))
    made._log_clips(literal, logps, old)
    logged = made.logged  # pyright: ignore
    assert logged["clip_ratio/low_mean"] == pytest.approx(0.3)
    assert logged["clip_ratio/high_mean"] == pytest.approx(0.2)
    assert logged["clip_ratio/region_mean"] == pytest.approx(0.5)
    assert logged["logp_gap/max"] == pytest.approx(float(torch.tensor(2.0).log()))
    assert logged["logp_gap/kl"] == pytest.approx(0.1056193), "(4 (0.5 - 1 - ln 0.5) + 3 (1.5 - 1 - ln 1.5)) / 10"
    assert logged["kl_k1"] == pytest.approx(float(ratios[0, :10].log().mean()))


def test_groups_whose_advantages_are_all_0_may_be_dropped() -> None:
    outcome = torch.tensor([1.0, 0.0, 0.5, 0.5, float("nan"), 1.0])
    inputs = credit_inputs_of(
        step_rewards_BS=torch.zeros(6, 1),
        step_mask_BS=torch.ones(6, 1, dtype=torch.bool),
        outcome_B=outcome,
        group_size=2,
    )
    advantages = torch.tensor([[1.0, 0.0], [-1.0, -1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    assert module().trained_episodes(inputs, advantages).tolist() == [True, True, True, True, False, True]
    dropping = module(zero_variance="drop")
    assert dropping.trained_episodes(inputs, advantages).tolist() == [True, True, False, False, False, True]
    again = module(zero_variance="resample", resample_rounds=2)
    assert again.trained_episodes(inputs, advantages).tolist() == [True, True, False, False, False, True]
    assert (again.resample_rounds, dropping.resample_rounds) == (2, 0)


def test_entropy_is_a_reward_of_the_loss(batch: SequenceBatch) -> None:
    """The loss is less by the weight times the sum of entropies, and its gradient makes the policy less sure."""
    still = changed(batch, advantages=torch.zeros_like(batch.logps_BT))
    made = module(small_policy(seed=5), entropy_weight=0.1)
    loss, gradients = step(made, still)
    entropy = made.logged["entropy"]  # pyright: ignore
    assert loss == pytest.approx(-0.1 * entropy * int(batch.loss_mask_BT.sum()), rel=1e-4)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter -= 1e-3 * gradients[name]
    step(made, still)
    assert made.logged["entropy"] > entropy  # pyright: ignore


def test_lost_likelihood_is_added_from_the_second_update_on(batch: SequenceBatch) -> None:
    fallen = changed(batch, logps_BT=batch.logps_BT + 0.5, advantages=torch.full_like(batch.logps_BT, 1e-9))
    made = module(likelihood_weight=0.2)
    first, second = (made.training_step(fallen, index).item() for index in (0, 1))
    assert second - first == pytest.approx(0.2 * 0.5 * int(batch.loss_mask_BT.sum()), rel=1e-4)
    assert module().training_step(fallen, 1).item() == first


def test_a_tree_is_one_place_of_the_buffer_and_is_not_sampled_again() -> None:
    trees = {"credit": partial(node_values_credit, divide=False)}
    assert (GRPO(small_policy(), AdamW(1e-3), **trees).smallest_group, module().smallest_group) == (1, 2)
    with pytest.raises(ConfigError, match="compares the paths of a tree"):
        GRPO(small_policy(), AdamW(1e-3), **trees, zero_variance="resample")


def test_a_batch_that_trains_nothing_gives_0_and_reaches_every_weight(batch: SequenceBatch) -> None:
    empty = changed(batch, loss_mask_BT=torch.zeros_like(batch.loss_mask_BT))
    loss, gradients = step(module(), empty)
    assert loss == 0
    assert not any(gradient.any() for gradient in gradients.values())
    assert gradients, "or a rank would wait for its gradients for ever"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kl_weight": 0.1}, "kl_weight needs a reference"),
        ({"denominator": "all", "aggregate": "group_sum"}, "denominator 'all' counts tokens"),
        ({"denominator": 512, "aggregate": "sequence_mean"}, "denominator 512 counts tokens"),
        ({"denominator": 0}, "denominator 0, resample_rounds 3: at least 1"),
        ({"zero_variance": "resample", "resample_rounds": 0}, "resample_rounds 0: at least 1"),
        ({"ratio": "sequence"}, "ratio sequence is a mean over sequences, but aggregate is token_mean"),
        ({"likelihood_weight": -0.1}, "likelihood_weight -0.1: it must be at least 0"),
        ({"importance_cap": 0.0}, "importance_cap 0.0: it must be > 0"),
        ({"clip_low": 0.0}, "clips must be > 0"),
        ({"clip_low": 1.5}, "clip_low <= 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        module(**settings)


def test_greedy_sampling_has_no_gradient() -> None:
    with pytest.raises(ConfigError, match="temperature"):
        GRPO(small_policy(), AdamW(1e-3), credit=dual_granularity_credit, temperature=0.0)
