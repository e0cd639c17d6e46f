"""What supervised fine-tuning weighs: Eq 1 by hand on whole episodes, in training and held out; its gradients."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from common.errors import ConfigError
from datamodules.episode_data import EpisodeData
from datamodules.records import episode_to_row, write_rows
from envs.packing import collate, pack
from envs.protocols.prorag import TAGS, ProRAG
from envs.types import Episode
from modules.optimizer import AdamW
from modules.sft import SFT
from modules.training import TrainingError
from tests.steps import episodes, played
from tests.tiny import byte_tokenizer, tiny_policy
from tests.toy_training import quiet_trainer

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
        output.last_hidden_state.retain_grad()
        captured.append(output.last_hidden_state)

    hook = policy.model.model.register_forward_hook(keep)
    made = SFT(policy, AdamW(1e-3), **settings)
    made.log = made.mean_loss = lambda *given, **_: given  # pyright: ignore
    total, count = made.training_step(batch, 0)  # pyright: ignore
    total.backward()
    hook.remove()
    (given,) = (state.grad for state in captured)
    assert given is not None
    given = given[:, :-1]  # by the hidden state before each token
    with torch.no_grad():
        logits = policy.model(input_ids=batch.ids_BT, attention_mask=batch.attention_BT).logits[:, :-1]
        target = torch.nn.functional.one_hot(batch.ids_BT[:, 1:], logits.shape[-1])
        logps_BT = (logits.log_softmax(dim=-1) * target).sum(dim=-1)
        expected = weight_BT[..., None] * (logits.softmax(dim=-1) - target) @ policy.model.lm_head.weight
    assert count == weight_BT.sum()
    assert total.item() == pytest.approx(-float((weight_BT * logps_BT).sum()), rel=1e-5)
    assert torch.allclose(given, expected, atol=1e-4)
    untrained = given[weight_BT == 0]
    assert len(untrained) > (weight_BT != 0).sum(), "prompts, scaffold, passages and padding"
    assert not untrained.any()


def test_a_weight_for_a_tag_that_is_no_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="tag_weights names '<anwser>', which is not in the policy's tokenizer"):
        SFT(tiny_policy(TOKENIZER), AdamW(1e-3), tag_weights={"<answer>": 5.0, "<anwser>": 5.0})


@pytest.mark.parametrize("weights", [{"control_weight": -3.0}, {"tag_weights": {"</step>": -2.0}}])
def test_a_negative_weight_is_refused(weights: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a weight must be 0 or more"):
        SFT(tiny_policy(TOKENIZER), AdamW(1e-3), **weights)


def test_a_budget_of_tokens_changes_neither_the_loss_of_a_step_nor_its_gradient(tmp_path: Path) -> None:
    """One step of all sequences: as one batch, and cut by length into passes, some of which may be empty."""
    write_rows(tmp_path / "data" / "episodes.jsonl", map(episode_to_row, said()))
    module = SFT(tiny_policy(TOKENIZER), AdamW(1e-3), control_weight=3.0)
    steps: list[tuple[int, float, float, Tensor]] = []
    for settings in ({}, {"micro_tokens": 300}):
        data = EpisodeData(tmp_path, batch_size=len(said()), **settings)
        data.trainer = SimpleNamespace(current_epoch=0, global_rank=0, world_size=1, accumulate_grad_batches=0)  # pyright: ignore
        data.setup("fit")
        passes = list(data.train_dataloader())
        assert len(passes) == data.trainer.accumulate_grad_batches  # pyright: ignore
        module.zero_grad()
        sums = [module._loss(batch) for batch in passes]
        torch.stack([total for total, _ in sums]).sum().backward()
        total, count = (float(torch.stack(list(values)).sum()) for values in zip(*sums, strict=True))
        steps.append((len(passes), total, count, module.model.lm_head.weight.grad.clone()))
    (one, total, count, gradient), (many, cut_total, cut_count, cut_gradient) = steps
    assert (one, many > 1) == (1, True)
    assert (cut_total, cut_count) == (pytest.approx(total, rel=1e-5), count)
    assert torch.allclose(cut_gradient, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch_size", [2, 4, 5])
def test_the_validation_loss_counts_every_held_out_token_once_however_they_are_batched(
    tmp_path: Path, batch_size: int
) -> None:
    write_rows(tmp_path / "data" / "episodes.jsonl", map(episode_to_row, said()))
    data = EpisodeData(tmp_path, batch_size=batch_size, validation=0.7)
    module = SFT(tiny_policy(TOKENIZER), AdamW(1e-3), control_weight=3.0)
    (logged,) = quiet_trainer(max_epochs=1).validate(module, datamodule=data, verbose=False)
    assert len(data.held_out) % batch_size > 0
    with torch.no_grad():
        total, count = module._loss(collate(data.held_out))
    assert logged["val_loss"] == pytest.approx(float(total / count), rel=1e-5)


def test_a_gradient_that_is_no_number_reaches_no_weight(tmp_path: Path) -> None:
    class Steep(SFT):
        def mean_loss(self, total: Tensor, count: Tensor) -> Tensor:
            return super().mean_loss(total + (total.detach() - total).abs().sqrt(), count)  # the root of 0

    write_rows(tmp_path / "data" / "episodes.jsonl", map(episode_to_row, said()))
    module = Steep(tiny_policy(TOKENIZER), AdamW(1e-3))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(
        TrainingError, match="the norm of the loss's gradient is nan at optimiser step 0: lower the learning rate"
    ):
        quiet_trainer(max_epochs=1).fit(module, datamodule=EpisodeData(tmp_path, batch_size=2))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
