"""Joint PPO in this process: whose tokens train whom, what the critic reads, what is shared, unknown or refused."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor

from common.errors import ConfigError
from envs.packing import PackedSequence, collate
from envs.rollout import independent_groups
from envs.types import Episode
from modules.functional.credit import tree_gae_credit
from modules.functional.credit_inputs import CreditInputs
from modules.lora import LoRA
from modules.optimizer import AdamW
from modules.policy import Policy, load_policy
from modules.reward_model.model import load_reward_model
from modules.rewards.terms import Term
from modules.sequence_logprobs import sequence_logprobs
from systems.sirag.agent_views import tokens_of
from systems.sirag.joint_ppo import VALUE, JointPPO
from tests.toy_agents import (
    ANSWERER,
    ASKER,
    PICKER,
    AskAndPick,
    Seen,
    agents_environment,
    agents_sampler,
    joint_settings,
    judged_letters,
    picked_letters,
    two_policies,
)
from tests.toy_rl import learn, small_policy

REWARDS = {"picked": Term(picked_letters), "judge": Term(judged_letters, level="step")}
Weights = dict[str, Tensor]


class Kept(Callback):
    """The episodes of every iteration, and the batches that trained."""

    def __init__(self) -> None:
        self.episodes: list[list[Episode]] = []
        self.batches: list[Any] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append(batch)
        if batch_idx == 0:
            self.episodes.append(trainer.callbacks[0].latest.episodes)


def trained(folder: Path, **settings: Any) -> tuple[JointPPO, Kept, list[list[PackedSequence]], dict[str, float]]:
    """The module, what was kept, the buffers by iteration, the metrics."""
    kept = Kept()
    given = {"rewards": REWARDS, "iterations": 1, "lr": 1e-2, "callbacks": [kept]} | settings
    module, watch, metrics = learn(folder, **joint_settings(**given))
    return module, kept, watch.buffers, metrics


def weights(policy: Policy) -> Weights:
    return {name: one.clone() for name, one in policy.model.state_dict().items()}


def moved(policy: Policy, before: Weights) -> bool:
    return any(not torch.equal(one, before[name]) for name, one in policy.model.state_dict().items())


def of(rows: list[PackedSequence], owner: str) -> list[PackedSequence]:
    return [row for row in rows if row.owner == owner]


def test_each_turn_is_a_row_of_its_own_agent_and_one_of_the_critic_and_a_shared_turn_only_once(tmp_path: Path) -> None:
    _, kept, (buffer,), metrics = trained(tmp_path)
    (episodes,) = kept.episodes
    turns = {turn.uid: turn for episode in episodes for turn in episode.turns}
    assert len(turns) < sum(len(episode.turns) for episode in episodes), "they share turns"
    for agent in (ASKER, PICKER):
        own = [(t.context_ids or ()) + t.opening_ids + t.action_ids for t in turns.values() if t.agent == agent]
        assert Counter(tuple(row.ids_T.tolist()) for row in of(buffer, agent)) == Counter(own)
    state = Seen(AskAndPick())
    read = {
        turn.uid: state(episode, number) + turn.action_ids
        for episode in episodes
        for number, turn in enumerate(episode.turns)
        if turn.agent != ANSWERER
    }
    assert Counter(tuple(row.ids_T.tolist()) for row in of(buffer, VALUE)) == Counter(read.values())
    assert {row.owner for row in buffer} == {ASKER, PICKER, VALUE}, "the frozen agent trains nothing"
    assert metrics["tokens/rollout"] == sum(len(turn.action_ids) for turn in turns.values())


def test_stored_log_probs_are_those_of_each_agent_and_only_its_own(tmp_path: Path) -> None:
    _, _, (buffer,), metrics = trained(tmp_path)
    begun = two_policies()
    for agent, other in ((ASKER, PICKER), (PICKER, ASKER)):
        batch = collate(of(buffer, agent))
        own, foreign = (sequence_logprobs(begun[name].model, batch) - batch.logps_BT for name in (agent, other))
        assert own[batch.loss_mask_BT].abs().max() <= 1e-4
        assert foreign[batch.loss_mask_BT].abs().max() > 1e-2
    assert metrics["logp_gap/mean"] <= 1e-5
    assert 0 < metrics["logp_gap/max"] <= 1e-4
    assert metrics["logp_gap/max"] == max(metrics[f"logp_gap/max/{agent}"] for agent in (ASKER, PICKER))
    assert metrics["logp_gap/kl"] == pytest.approx(0.0, abs=1e-8)


@pytest.mark.parametrize("alone", [ASKER, PICKER])
def test_an_agent_s_tokens_train_that_agent_alone(tmp_path: Path, alone: str) -> None:
    """All others' loss is exactly 0, and their weights stay as they are; the answerer's stay whatever is trained."""
    begun, frozen = {agent: weights(policy) for agent, policy in two_policies().items()}, small_policy(9)
    still = weights(frozen)
    other = PICKER if alone == ASKER else ASKER

    class Alone(JointPPO):
        def token_channels(self, inputs: CreditInputs, advantages_BT: Tensor, kept_B: Tensor) -> dict[str, Tensor]:
            channels = super().token_channels(inputs, advantages_BT, kept_B)
            return channels | {"advantages": channels["advantages"] * tokens_of(alone, inputs)}

    settings = {"module": Alone, "rollout": {"sampler": agents_sampler(frozen)}, "kl_weight": 0.0}
    module, _, _, metrics = trained(tmp_path, **settings)
    assert moved(module.policy[alone], begun[alone])
    assert not moved(module.policy[other], begun[other])
    assert not moved(frozen, still)
    assert metrics["grad_norm/value"] > 0


def test_a_batch_in_which_an_agent_has_no_row_steps_too(tmp_path: Path) -> None:
    """No query is read as one, so the picker has no turn at all; critic and asker train."""
    never = {"sampling": joint_settings()["rollout"]["sampling"]}
    never["sampling"] = dataclasses.replace(never["sampling"], root=["a", "b"], depth=0)
    begun = {agent: weights(policy) for agent, policy in two_policies().items()}

    class NoQuery(AskAndPick):
        def parse(self, episode: Episode, turn: Any) -> Any:
            action = super().parse(episode, turn)
            return dataclasses.replace(action, kind="stop") if action.kind == "query" else action

    place = agents_environment()
    place.protocol = NoQuery()  # pyright: ignore[reportAttributeAccessIssue]
    module, kept, (buffer,), metrics = trained(tmp_path, place=place, rollout=never)
    assert not of(buffer, PICKER)
    assert all(turn.agent != PICKER for episode in kept.episodes[0] for turn in episode.turns)
    assert metrics["loss/picker"] == metrics["grad_norm/picker"] == 0
    assert moved(module.policy[ASKER], begun[ASKER])
    assert not moved(module.policy[PICKER], begun[PICKER])


def test_advantages_are_the_tree_s_and_weigh_what_the_root_s_branch_weighs(tmp_path: Path) -> None:
    credit = partial(tree_gae_credit, alpha=0.5, beta=0.5, lam=1.0)
    _, kept, (buffer,), _ = trained(tmp_path, credit=credit, whiten=False)
    (episodes,) = kept.episodes
    expected: list[tuple[tuple[int, ...], float]] = []
    credits: list[float] = []
    turns = {turn.uid: (turn, episode) for episode in episodes for turn in episode.turns if turn.agent != ANSWERER}
    for turn, episode in turns.values():
        mean = float(picked_letters([e for e in episodes if any(t.uid == turn.uid for t in e.turns)], None).mean())
        known = 0.5 * mean + 0.5 * (0.9 if turn.text.startswith("a") else 0.1)
        ids = (turn.context_ids or ()) + turn.opening_ids + turn.action_ids
        expected.append((ids, episode.weight * known))
        credits += [known] * len(turn.action_ids)
    # An untrained critic's values are 0, so with lambda 1 every token has the whole credit.
    rows = [row for agent in (ASKER, PICKER) for row in of(buffer, agent)]
    given = [(tuple(row.ids_T.tolist()), row.channels["advantages"][row.loss_mask_T]) for row in rows]
    assert all(float(values.max() - values.min()) < 1e-6 for _, values in given)
    found = sorted((ids, float(values[0])) for ids, values in given)
    assert [ids for ids, _ in found] == [ids for ids, _ in sorted(expected)]
    assert [value for _, value in found] == pytest.approx([value for _, value in sorted(expected)], abs=1e-5)
    assert len({round(episode.weight, 3) for episode in episodes}) > 2
    returns = torch.cat([row.channels["returns"][row.loss_mask_T] for row in of(buffer, VALUE)])
    assert sorted(returns.tolist()) == pytest.approx(sorted(credits), abs=1e-5), "unweighted"


def test_each_agent_s_advantages_are_whitened_over_its_own_tokens_each_once(tmp_path: Path) -> None:
    sampled = {"sampling": dataclasses.replace(joint_settings()["rollout"]["sampling"], root=())}  # all weigh 1
    _, kept, (buffer,), _ = trained(tmp_path, rollout=sampled)
    turns = [turn for episode in kept.episodes[0] for turn in episode.turns]
    assert len({turn.uid for turn in turns}) < len(turns), "some are shared"
    for agent in (ASKER, PICKER):
        own = torch.cat([row.channels["advantages"][row.loss_mask_T] for row in of(buffer, agent)])
        assert float(own.mean()) == pytest.approx(0, abs=1e-4)
        assert float(own.std(correction=0)) == pytest.approx(1, abs=1e-4)


def test_an_action_that_the_judge_failed_trains_nothing_and_the_others_do(tmp_path: Path) -> None:
    fails = {"picked": REWARDS["picked"], "judge": Term(partial(judged_letters, fails=PICKER), level="step")}
    begun = two_policies()
    module, _, (buffer,), metrics = trained(tmp_path, rewards=fails)
    assert of(buffer, ASKER)
    assert not of(buffer, PICKER)
    assert len(of(buffer, VALUE)) == len(of(buffer, ASKER))
    assert not moved(module.policy[PICKER], weights(begun[PICKER]))
    assert 0 < metrics["rewards/judge/unscored"] < 1


def test_without_a_tree_there_are_independent_episodes(tmp_path: Path) -> None:
    settings = {"rollout": {"sampling": independent_groups}, "data": {"group_size": 8}}
    _, kept, (buffer,), _ = trained(tmp_path, **settings)
    turns = [turn for episode in kept.episodes[0] for turn in episode.turns]
    assert len(kept.episodes[0]) == 32
    assert len(of(buffer, VALUE)) == sum(turn.agent != ANSWERER for turn in turns) == len({id(t) for t in turns}) - 32


def test_all_learn_together(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "rewards": {"picked": Term(picked_letters)},
        "credit": partial(tree_gae_credit, alpha=1, beta=0),
    }
    _, _, _, first = trained(tmp_path, **settings)
    _, _, _, last = trained(tmp_path, **settings, iterations=12)
    assert last["reward"] > first["reward"] + 0.15
    assert first["critic/explained_variance"] == 0
    assert first["critic/clip_ratio"] == 0, "no value has moved before the first update"


def test_two_adapters_on_one_backbone_share_its_weights_and_nothing_else(tmp_path: Path) -> None:
    backbone = small_policy()
    rollout = {"sampler": agents_sampler()}
    settings = {"policy": {ASKER: backbone, PICKER: backbone}, "lora": LoRA(r=4), "kl_weight": 0.1, "rollout": rollout}
    module, _, buffers, metrics = trained(tmp_path, **settings, iterations=2)
    models = [policy.model for policy in module.policy.values()]
    shared = [{id(one) for one in model.parameters() if not one.requires_grad} for model in models]
    own = [{id(one) for one in model.parameters() if one.requires_grad} for model in models]
    assert shared[0] == shared[1], "one copy of the frozen weights"
    assert not own[0] & own[1]
    assert metrics["grad_norm"] > 0
    assert metrics["grad_norm/picker"] > 0
    assert metrics["kl/asker"] > 0, "both have left what they began at"
    assert metrics["kl/picker"] > 0
    anchor = collate(of(buffers[1], PICKER))
    expected = sequence_logprobs(small_policy().model, anchor)
    assert torch.allclose(anchor.channels["reference_logps"], expected, atol=1e-5), "the reference is the backbone"
    module.export(tmp_path)
    batch = collate(of(buffers[0], PICKER))
    merged = [load_policy(str(tmp_path / "model" / agent), device="cpu") for agent in (ASKER, PICKER)]
    logps = [sequence_logprobs(policy.model, batch) for policy in merged]
    module.policy[PICKER].model.eval()
    assert torch.allclose(logps[1], sequence_logprobs(module.policy[PICKER].model, batch), atol=1e-5)
    assert not torch.allclose(logps[0], logps[1], atol=1e-3), "each exports its own"
    assert (tmp_path / "adapter" / PICKER / "adapter_model.safetensors").exists()


def test_it_exports_both_agents_and_a_critic_that_another_run_begins_at(tmp_path: Path) -> None:
    module, _, _, _ = trained(tmp_path)
    module.export(tmp_path)
    for agent, policy in module.policy.items():
        again = load_policy(str(tmp_path / "model" / agent), device="cpu").model.state_dict()
        assert all(torch.equal(one, again[name]) for name, one in policy.model.state_dict().items())
    critic = load_reward_model(tmp_path / "critic", device="cpu")
    other = made(critic=critic)
    assert torch.equal(other.head.linear.weight, module.head.linear.weight)
    assert not (tmp_path / "adapter").exists()


def made(**settings: Any) -> JointPPO:
    given = {"policies": two_policies(), "state": Seen(AskAndPick()), "critic_lr": 1e-2} | settings
    return JointPPO(optimizer=AdamW(1e-3), **given)


def test_agents_that_begin_at_one_model_get_weights_of_their_own() -> None:
    begin = small_policy()
    module = made(policies={ASKER: begin, PICKER: begin})
    groups = [{id(one) for one in loss.parameters()} for loss in module.losses().values()]
    assert list(module.losses()) == [ASKER, PICKER, VALUE]
    assert not groups[0] & groups[1]
    assert not (groups[0] | groups[1]) & groups[2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policies": {}}, "give at least one agent's"),
        ({"policies": {"value": small_policy()}}, "none of them named value"),
        ({"critic_lr": 0.0}, "critic_lr 0.0, value_clip 0.5: both must be > 0"),
        ({"clip_low": 2.0}, "clip_low <= 1"),
        ({"kl_weight": -1.0}, "weights >= 0"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(**settings)
