"""Preference optimisation of turns: against sums of log-probs worked out token by token, and what it learns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from safetensors.torch import load_file

from common.errors import ConfigError
from datamodules.records import pair_to_row, write_rows
from datamodules.turn_pair_data import TurnPairData
from envs.pairs import Pair
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Limits, Turn
from modules.dpo import DPO
from modules.lora import LoRA
from modules.optimizer import AdamW
from modules.policy import Policy
from tests.steps import PASSAGES, toy_pairs
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, question, tiny_policy
from tests.toy_protocols import TAGS, Notebook, OneMove
from tests.toy_training import quiet_trainer


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of first turns, which speak of good and of bad things."""
    folder = tmp_path_factory.mktemp("pairs")
    byte_tokenizer().save_pretrained(folder)
    write_rows(folder / "data" / "pairs.jsonl", map(pair_to_row, toy_pairs(ProRAG(folder, instruction=""), 40)))
    return folder


def later_pairs(protocol: OneMove, count: int = 6) -> list[Pair]:
    """Pairs of second turns, with passages, an opening and earlier text of the policy before them."""

    def played(number: int, word: str) -> Any:
        says = [f"<find>who wrote {number}?</find>", f"<note>{word} {number * word}</note>", "<say>Ada</say>"]
        sampler = Scripted(protocol.codec.control, lambda episode: says[len(episode.turns)])
        environment = RetrievalEnvironment(protocol, FixedRetriever(PASSAGES), limits=Limits(turns=2, turn_tokens=99))
        [episode] = rollout(environment, sampler, [question(f"Who wrote {number}?", identity=f"q{number}")], seed=0)
        episode.turns[1].uid += word
        return replace(episode, status=None)

    return [Pair(played(number, "yes"), played(number, "no")) for number in range(1, count + 1)]


def written(folder: Path, pairs: Sequence[Pair]) -> Path:
    write_rows(folder / "data" / "pairs.jsonl", map(pair_to_row, pairs))
    return folder


class Steps(Callback):
    """Keeps what is logged after every optimiser step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step > len(self.rows):
            self.rows.append({name: float(value) for name, value in trainer.logged_metrics.items()})


def fitted(
    pairs: Path,
    folder: Path,
    policy: Policy | None = None,
    *,
    lr: float = 3e-3,
    epochs: int = 1,
    data: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[Trainer, list[dict[str, float]]]:
    """A fit, and what it logged step by step; the reference is the policy itself unless said otherwise."""
    policy = policy or tiny_policy(byte_tokenizer())
    arguments: dict[str, Any] = {"reference": policy} | settings
    module = DPO(policy, AdamW(lr), **arguments)
    steps = Steps()
    trainer = quiet_trainer(
        max_epochs=epochs, num_sanity_val_steps=0, log_every_n_steps=1, default_root_dir=folder, callbacks=[steps]
    )
    trainer.fit(module, datamodule=TurnPairData(pairs, **({"batch_size": 8, "validation": 0.3} | (data or {}))))
    module.export(folder)
    return trainer, steps.rows


def log_prob(policy: Policy, context: Sequence[int], turn: Turn) -> float:
    """Of the tokens of a turn, one after another, each by a pass over all that stands before it."""
    ids, total = [*context, *turn.opening_ids], 0.0
    with torch.no_grad():
        for token in turn.action_ids:
            logits_V = policy.model(input_ids=torch.tensor([ids])).logits[0, -1]
            total += float(torch.log_softmax(logits_V, dim=-1)[token])
            ids.append(token)
    return total


@pytest.mark.parametrize("kind", [OneMove, Notebook])
def test_the_loss_is_that_of_the_last_turn_given_its_own_context(kind: type[OneMove], tmp_path: Path) -> None:
    """In a context that grows and in one that is rendered anew; the reference is another policy, or left out."""
    tokenizer = byte_tokenizer(TAGS)
    made = later_pairs(kind(tokenizer))
    assert (made[0].chosen.turns[1].context_ids is None) == (kind is OneMove)
    policy, reference = tiny_policy(tokenizer, scale=3.0), tiny_policy(tokenizer, seed=1, scale=3.0)
    margins: dict[bool, list[float]] = {False: [], True: []}
    drifts = []
    for pair in made:
        one, other = pair.chosen.turns[1], pair.rejected.turns[1]
        context = one.context_ids or replace(pair.chosen, turns=pair.chosen.turns[:1]).context()
        assert context == (other.context_ids or replace(pair.rejected, turns=pair.rejected.turns[:1]).context())
        (chosen, rejected), (old_chosen, old_rejected) = (
            [log_prob(of, context, turn) for turn in (one, other)] for of in (policy, reference)
        )
        margins[False].append(0.3 * ((chosen - old_chosen) - (rejected - old_rejected)))
        margins[True].append(0.3 * (chosen - rejected))
        drifts.append(chosen - old_chosen)
    folder, data = written(tmp_path, made), {"batch_size": 6, "validation": 0.0}
    for free, expected in margins.items():
        _, [row] = fitted(folder, tmp_path, policy, lr=0.0, data=data, reference=reference, reference_free=free)
        assert row["loss"] == pytest.approx(sum(math.log1p(math.exp(-m)) for m in expected) / 6, rel=1e-4)
        assert row["dpo/margin"] == pytest.approx(sum(expected) / 6, rel=1e-3)
        assert row["dpo/accuracy"] == pytest.approx(sum(m > 0 for m in expected) / 6)
        assert row["dpo/chosen_drift"] == pytest.approx(sum(drifts) / 6, rel=1e-3)
    _, [row] = fitted(folder, tmp_path, policy, lr=0.0, data=data, reference=None, reference_free=True)
    assert row["dpo/margin"] == pytest.approx(sum(margins[True]) / 6, rel=1e-3)
    assert "dpo/chosen_drift" not in row


def test_it_learns_to_prefer_good_turns_on_questions_it_was_not_shown(pairs: Path, tmp_path: Path) -> None:
    trainer, steps = fitted(pairs, tmp_path, epochs=3)
    measured = trainer.callback_metrics
    assert float(measured["dpo/val_accuracy"]) == 1
    assert float(measured["dpo/val_margin"]) > 1
    assert steps[0]["loss"] == pytest.approx(math.log(2), abs=1e-5), "at first nothing has moved"
    assert (steps[0]["dpo/margin"], steps[0]["dpo/chosen_drift"]) == (0, 0)
    assert float(measured["val_loss"]) < steps[0]["loss"] / 2
    assert steps[-1]["dpo/chosen_drift"] > steps[-1]["dpo/rejected_drift"]


def test_without_a_reference_it_learns_too_and_tells_the_drift_from_one_that_only_watches(
    pairs: Path, tmp_path: Path
) -> None:
    trainer, steps = fitted(pairs, tmp_path, epochs=3, reference_free=True)
    assert float(trainer.callback_metrics["dpo/val_accuracy"]) == 1
    assert steps[0]["dpo/margin"] != 0
    assert steps[0]["dpo/chosen_drift"] == 0
    assert steps[-1]["dpo/chosen_drift"] != 0


def test_micro_batches_change_neither_weights_nor_measures(pairs: Path, tmp_path: Path) -> None:
    """Three steps of all forty pairs each."""
    sizes, runs = (40, 10), []
    for size in sizes:
        data = {"batch_size": 40, "micro_batch": size, "validation": 0.0}
        runs.append(fitted(pairs, tmp_path / str(size), epochs=3, data=data)[1])
    assert len(runs[0]) == 3
    for one, other in zip(*runs, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
    weights = [load_file(tmp_path / str(size) / "model" / "model.safetensors") for size in sizes]
    assert max(float((weights[0][name] - weights[1][name]).abs().max()) for name in weights[0]) < 3e-5  # 1 % of a step


def test_with_adapters_the_reference_is_the_model_without_them(pairs: Path, tmp_path: Path) -> None:
    """The same as a copy of what it began as."""
    policy = tiny_policy(byte_tokenizer())
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    torch.manual_seed(0)
    shared, steps = fitted(pairs, tmp_path, policy, lora=LoRA(r=4), lr=1e-2)
    assert cast(Any, shared.lightning_module).reference.model is policy.model
    torch.manual_seed(0)
    _, copied = fitted(pairs, tmp_path, lora=LoRA(r=4), lr=1e-2, reference=tiny_policy(byte_tokenizer()))
    for one, other in zip(steps, copied, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
    assert steps[-1]["dpo/margin"] > 0
    after = policy.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if name in after)


def test_a_reference_of_its_own_component_is_a_frozen_copy(pairs: Path, tmp_path: Path) -> None:
    policy = tiny_policy(byte_tokenizer())
    trainer, _ = fitted(pairs, tmp_path, policy)
    reference = cast(Any, trainer.lightning_module).reference.model
    began = tiny_policy(byte_tokenizer()).model.state_dict()
    assert all(torch.equal(value, began[name]) for name, value in reference.state_dict().items())
    assert any(not torch.equal(value, began[name]) for name, value in policy.model.state_dict().items())


def test_the_same_seed_gives_the_same_weights(pairs: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        fitted(pairs, tmp_path / name)
    files = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("first", "second")]
    assert files[0] == files[1]


def test_settings_that_make_no_sense_are_refused() -> None:
    policy = tiny_policy(byte_tokenizer())
    with pytest.raises(ConfigError, match="beta 0: it must be above 0"):
        DPO(policy, AdamW(1e-3), reference=policy, beta=0)
    with pytest.raises(ConfigError, match="there is no reference: give one"):
        DPO(policy, AdamW(1e-3))
