"""What a critic begins at, which states it values, and what is estimated of whole episodes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common.errors import ConfigError
from envs.packing import collate, pack
from envs.types import Episode, Step, Turn
from modules.critic import new_critic, token_values
from modules.episode_tensors import token_estimates
from modules.reward_model.model import RewardModel, load_reward_model, untrained_reward_model
from modules.sequence_logprobs import sequence_logprobs
from tests.tiny import byte_tokenizer, question, tiny_policy
from tests.toy_rl import small_policy

CPU = torch.device("cpu")


def critic(seed: int = 1) -> RewardModel:
    """A critic with a head that is not 0."""
    made = new_critic(small_policy(seed), small_policy())
    with torch.no_grad():
        made.head.linear.weight.copy_(torch.linspace(-1, 1, 32))
        made.head.zero.fill_(0.25)
    return made


def turn(uid: str, *ids: int, sees: tuple[int, ...] = (), trainable: bool = True, **more: tuple[int, ...]) -> Turn:
    logps = (-1.0,) * len(ids)
    return Turn("policy", (9,), ids, logps, "stop", uid, observation_ids=sees, trainable=trainable, **more)


def episodes() -> list[Episode]:
    """One with a passage and a frozen turn, whose second step spans two turns; one whose context is rendered anew."""
    growing = [turn("a", 3, 4, sees=(7, 8)), turn("b", 5, 6), turn("c", 2, trainable=False), turn("d", 1)]
    steps = (((0, 0, 1),), ((0, 1, 2), (1, 0, 2)), ((2, 0, 1),), ((3, 0, 1),))
    again = [turn("e", 3, 4), turn("f", 5, context_ids=(2, 2, 2))]
    both = [(growing, steps), (again, (((1, 0, 1),), ((0, 0, 2),)))]
    return [
        Episode(question(), (1, 2), turns, "answered", steps=tuple(Step("x", True, spans) for spans in of_steps))
        for turns, of_steps in both
    ]


def test_it_begins_at_0_whatever_the_language_model() -> None:
    made = new_critic(small_policy(), small_policy())
    batch = collate([pack(sequence) for sequence in episodes()[0].sequences()])
    assert not token_values(made, batch).any()


def test_a_value_is_that_of_the_state_before_the_token_and_of_nothing_later() -> None:
    """Each one alone: the head on the last hidden state of what stands before the token."""
    made, ((sequence,), *_) = critic(), (one.sequences() for one in episodes())
    batch = collate([pack(sequence)])
    (values_T,) = token_values(made, batch).detach()
    assert sequence.loss_mask == (0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1)
    for place, trained in enumerate(sequence.loss_mask):
        if not trained:
            assert values_T[place] == 0, "prompts, openings, passages and frozen turns"
            continue
        hidden_TD = made.policy.model.model(torch.tensor([sequence.ids[:place]])).last_hidden_state[0]
        alone = hidden_TD[-1] @ torch.linspace(-1, 1, 32) + 0.25
        assert float(values_T[place]) == pytest.approx(alone.item(), abs=1e-5)


def test_estimates_are_in_the_order_of_the_steps() -> None:
    """Of ids: the frozen turn's is 0, and the second episode's steps come in another order than its turns."""
    found = token_estimates(lambda batch: batch.ids_BT * batch.loss_mask_BT, episodes(), CPU)
    assert found.tolist() == [[3, 4, 5, 6, 0, 1], [5, 3, 4, 0, 0, 0]]


def test_estimates_do_not_depend_on_what_shares_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = critic()
    with torch.no_grad():
        together = token_estimates(lambda batch: token_values(made, batch), episodes(), CPU)
        monkeypatch.setattr("modules.episode_tensors._TOKENS", 1)
        alone = token_estimates(lambda batch: token_values(made, batch), episodes(), CPU)
    assert torch.allclose(together, alone, atol=1e-5)
    assert together[0, 0] != 0
    policy = small_policy()
    logps = token_estimates(lambda batch: sequence_logprobs(policy.model, batch), episodes(), CPU)
    assert bool((logps[1, :3] < 0).all())
    assert logps[0, 4] == 0


def test_it_is_a_copy_that_trains_whole() -> None:
    start = small_policy()
    start.model.requires_grad_(False)
    made = new_critic(start, small_policy())
    assert made.policy.model is not start.model
    trained = {name for name, one in made.policy.model.named_parameters() if one.requires_grad}
    assert "model.embed_tokens.weight" in trained
    assert {name for name, _ in start.model.named_parameters()} - trained == {"lm_head.weight"}, "which it never reads"
    assert [one.requires_grad for one in (made.head.linear.weight, made.head.zero)] == [True, True]


def test_it_begins_where_another_run_left_one(tmp_path: Path) -> None:
    made = critic()
    made.save(tmp_path)
    again = new_critic(load_reward_model(tmp_path, device="cpu"), small_policy())
    batch = collate([pack(sequence) for sequence in episodes()[0].sequences()])
    assert torch.equal(token_values(again, batch), token_values(made, batch))


def test_one_of_another_tokenizer_or_with_another_head_is_refused() -> None:
    with pytest.raises(ConfigError, match="critic and policy have different tokenizers"):
        new_critic(tiny_policy(byte_tokenizer()), small_policy())
    with pytest.raises(ConfigError, match="give a reward model without features"):
        new_critic(untrained_reward_model(small_policy(), kinds=["query"]), small_policy())
