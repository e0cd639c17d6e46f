"""What supervised fine-tuning weighs: Eq 1 by hand on whole episodes, its gradients, and a tag that is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from envs.batches import collate, pack
from envs.errors import ConfigError
from envs.protocols.prorag import TAGS, ProRAG
from envs.types import Episode
from modules.optimizer import AdamW
from modules.sft import SFT
from tests.steps import episodes, played
from tests.tiny import byte_tokenizer, tiny_policy

TOKENIZER = byte_tokenizer()
TAG_WEIGHTS = {tag: 1.5 + number for number, tag in enumerate(TAGS)}  # in scaffold and passages, too
THRICE = dict.fromkeys([*TAGS, "<|im_start|>", "<|im_end|>"], 3.0)


def said() -> list[Episode]:
    """Four episodes of different lengths; in one the message ends where a step should."""
    protocol = ProRAG(TOKENIZER, instruction="")
    return [*episodes(protocol), played(protocol, ["Who? <|im_end|>"], identity="q3")]


def weights_by_hand(weights: dict[str, float], length: int) -> Tensor:
    """`[B, T]` from the turns themselves: what the policy said has a weight, and nothing else."""
    of = {TOKENIZER.convert_tokens_to_ids(token): weight for token, weight in weights.items()}
    rows = []
    for episode in said():
        row = [0.0] * len(episode.prompt_ids)
        for turn in episode.turns:
            row += [0.0] * len(turn.opening_ids)
            row += [of.get(token, 1.0) for token in turn.action_ids]
            row += [0.0] * len(turn.observation_ids)
        rows.append(row + [0.0] * (length - len(row)))
    return torch.tensor(rows)


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({"tag_weights": TAG_WEIGHTS}, TAG_WEIGHTS),
        ({"tag_weights": {"<answer>": 5, "</step>": 0.5}}, {"<answer>": 5, "</step>": 0.5}),
        ({}, THRICE),
        ({"control_weight": 1.0}, {}),
    ],
    ids=["every tag has its own", "some tags", "the special tokens by default", "none"],
)
def test_the_loss_and_its_gradients_are_those_of_eq_1(settings: dict[str, Any], weights: dict[str, float]) -> None:
    """Nothing but the policy's own tokens trains, each with the weight of its kind."""
    batch = collate([pack(sequence) for episode in said() for sequence in episode.sequences()])
    weight_BT = weights_by_hand(weights, batch.ids_BT.shape[1])[:, 1:]
    policy = tiny_policy(TOKENIZER)
    captured: list[Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        output.logits.retain_grad()
        captured.append(output.logits)

    hook = policy.model.register_forward_hook(keep)
    made = SFT(policy, AdamW(1e-3), **settings)
    made.log = made.mean_loss = lambda *given, **_: given  # pyright: ignore
    total, count = made.training_step(batch, 0)  # pyright: ignore
    total.backward()
    hook.remove()
    (logits_BKV,) = captured
    positions = batch.loss_mask_BT.any(dim=0).nonzero().squeeze(-1)
    assert logits_BKV.grad is not None
    given = torch.zeros(*batch.ids_BT.shape, logits_BKV.shape[-1]).index_copy(1, positions, logits_BKV.grad)[:, 1:]
    with torch.no_grad():
        logits = policy.model(input_ids=batch.ids_BT, attention_mask=batch.attention_BT).logits[:, :-1]
        target = torch.nn.functional.one_hot(batch.ids_BT[:, 1:], logits.shape[-1])
        logps_BT = (logits.log_softmax(dim=-1) * target).sum(dim=-1)
        expected = weight_BT[..., None] * (logits.softmax(dim=-1) - target)
    assert count == weight_BT.sum()
    assert total.item() == pytest.approx(-float((weight_BT * logps_BT).sum()), rel=1e-5)
    assert torch.allclose(given, expected, atol=1e-4)
    untrained = given[weight_BT == 0]
    assert len(untrained) > (weight_BT != 0).sum(), "prompts, scaffold, passages and padding"
    assert not untrained.any()


def test_a_weight_for_a_tag_that_is_no_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="tag_weights names '<anwser>', which is no token"):
        SFT(tiny_policy(TOKENIZER), AdamW(1e-3), tag_weights={"<answer>": 5.0, "<anwser>": 5.0})
