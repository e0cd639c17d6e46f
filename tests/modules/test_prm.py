from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightning.pytorch import Trainer
from safetensors.torch import load_file
from torch import Tensor

from common.errors import ConfigError
from datamodules.pair_data import PairData
from datamodules.records import pair_to_row, write_rows
from envs.protocols.prorag import ProRAG
from envs.score_positions import PairBatch, ScoreBatch
from modules.optimizer import AdamW
from modules.prm import PRM
from modules.reward_model.model import RewardModel, load_reward_model
from tests.steps import toy_pairs
from tests.tiny import byte_tokenizer, tiny_policy
from tests.toy_training import quiet_trainer


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    byte_tokenizer().save_pretrained(folder)
    write_rows(folder / "data" / "pairs.jsonl", map(pair_to_row, toy_pairs(ProRAG(folder, instruction=""), 40)))
    return folder


def fitted(
    pairs: Path,
    folder: Path,
    *,
    epochs: int = 3,
    validation: float = 0.3,
    lr: float = 3e-3,
    precision: Any = "32-true",
    batches: tuple[int, int] = (8, 8),
    **settings: Any,
) -> Trainer:
    module = PRM(tiny_policy(byte_tokenizer()), AdamW(lr), **settings)
    trainer = quiet_trainer(precision=precision, max_epochs=epochs, num_sanity_val_steps=0, default_root_dir=folder)
    batch_size, micro_batch = batches
    data = PairData(pairs, batch_size=batch_size, micro_batch=micro_batch, validation=validation)
    trainer.fit(module, datamodule=data)
    module.export(folder)
    return trainer


def test_it_learns_to_tell_siblings_apart_on_questions_it_was_not_shown(pairs: Path, tmp_path: Path) -> None:
    trainer = fitted(pairs, tmp_path)
    assert trainer.callback_metrics["prm/pair_accuracy"] >= 0.95
    scorer = load_reward_model(tmp_path / "model", device="cpu")
    held_out = toy_pairs(ProRAG(pairs, instruction=""), 60)[-10:]
    good = torch.cat(scorer.score([pair.chosen for pair in held_out]))
    bad = torch.cat(scorer.score([pair.rejected for pair in held_out]))
    assert (good > 0).all(), "calibrated scores have their zero between right and wrong"
    assert (bad < 0).all()


def test_before_any_step_all_siblings_are_equal_and_the_loss_is_log_two(pairs: Path, tmp_path: Path) -> None:
    metrics = fitted(pairs, tmp_path, epochs=1, lr=0.0).callback_metrics
    assert float(metrics["val_loss"]) == pytest.approx(0.693147, abs=1e-5)
    assert float(metrics["prm/pair_accuracy"]) == 0


def test_the_same_seed_gives_the_same_weights(pairs: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        fitted(pairs, tmp_path / name, epochs=1, features=True)
    for file in ("model.safetensors", "head.safetensors", "reward_model.json"):
        assert (tmp_path / "first/model" / file).read_bytes() == (tmp_path / "second/model" / file).read_bytes()


def test_backbone_and_head_are_trained_and_the_weights_of_the_features_stay(pairs: Path, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in tiny_policy(byte_tokenizer()).model.state_dict().items()}
    fitted(pairs, tmp_path / "begun", epochs=1, lr=0.0, features=True)
    trainer = fitted(pairs, tmp_path, epochs=1, features=True)
    head = trainer.lightning_module.head
    assert head.linear.weight.abs().max() > 0
    begun = load_reward_model(tmp_path / "begun" / "model").head
    assert head.features.kinds == begun.features.kinds == ("query",)
    assert torch.equal(head.features.weight_KF, begun.features.weight_KF)
    assert head.features.weight_KF.abs().max() > 0
    after = trainer.lightning_module.model.state_dict()
    assert not torch.equal(before["model.layers.0.mlp.up_proj.weight"], after["model.layers.0.mlp.up_proj.weight"])


def test_the_accuracy_of_an_update_is_that_of_all_its_pairs(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In five passes of eight pairs, whose scores are set, 8, 2, 0, 0 and 0 of them are right."""
    right = cycle((8, 2, 0, 0, 0))

    def scores(self: PRM, batch: PairBatch) -> tuple[Tensor, Tensor]:
        rejected_N = self.head.linear.weight.sum().expand(len(batch))
        return rejected_N + torch.where(torch.arange(len(batch)) < next(right), 1.0, -1.0), rejected_N

    monkeypatch.setattr(PRM, "_scores", scores)
    trainer = fitted(pairs, tmp_path, epochs=1, validation=0.0, batches=(40, 8))
    assert float(trainer.callback_metrics["accuracy"]) == 0.25


def test_the_pointwise_loss_adds_each_side_alone_and_learns_where_zero_is(pairs: Path, tmp_path: Path) -> None:
    still = fitted(pairs, tmp_path / "still", epochs=1, lr=0.0, pointwise=0.5).callback_metrics
    assert float(still["loss"]) == pytest.approx(0.693147 * 1.5, abs=1e-5)
    learnt = fitted(pairs, tmp_path / "learnt", pointwise=1.0)
    assert learnt.lightning_module.head.zero.item() != 0
    held_out = toy_pairs(ProRAG(pairs, instruction=""), 60)[-10:]
    scorer = load_reward_model(tmp_path / "learnt" / "model", device="cpu")
    scorer.scale, scorer.offset = 1.0, 0.0
    assert all(bool((scores > 0).all()) for scores in scorer.score([pair.chosen for pair in held_out]))
    assert all(bool((scores < 0).all()) for scores in scorer.score([pair.rejected for pair in held_out]))
    assert fitted(pairs, tmp_path / "plain", epochs=1).lightning_module.head.zero.item() == 0


def test_with_features_both_losses_begin_below_what_nothing_is_known_at(pairs: Path, tmp_path: Path) -> None:
    """The pointwise loss depends on the constants, which differences of two sides say nothing of."""
    nothing = fitted(pairs, tmp_path / "nothing", epochs=1, lr=0.0, pointwise=1.0).callback_metrics
    begun = fitted(pairs, tmp_path / "begun", epochs=1, lr=0.0, pointwise=1.0, features=True).callback_metrics
    alone = fitted(pairs, tmp_path / "alone", epochs=1, lr=0.0, features=True).callback_metrics
    assert float(nothing["loss"]) == pytest.approx(2 * 0.693147, abs=1e-5)
    assert float(begun["loss"]) < 2 * 0.693147 - 0.02
    assert float(alone["loss"]) < 0.693147 - 0.002


def test_without_held_out_pairs_it_warns_and_calibrates_on_the_same_batches_whatever_the_epoch(
    pairs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = fitted(pairs, tmp_path, epochs=1, validation=0.0)
    assert "no questions are held out" in caplog.text
    assert load_reward_model(tmp_path / "model").scale != 1
    batches: list[list[int]] = []
    scored = PRM.scored
    monkeypatch.setattr(
        PRM, "scored", lambda self, batch: batches.append(batch.number_N.tolist()) or scored(self, batch)
    )
    module = cast(PRM, trainer.lightning_module)
    module.export(tmp_path / "once")
    trainer.fit_loop.epoch_progress.current.completed += 1  # as in a run that was killed after its last step
    module.export(tmp_path / "again")
    half = len(batches) // 2
    assert batches[:half] == batches[half:]


@pytest.mark.parametrize(("precision", "features"), [("bf16-mixed", False), ("bf16-true", False), ("bf16-true", True)])
def test_in_half_precision_the_head_trains_and_scores_in_float32(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, features: bool
) -> None:
    """Scores rounded to bfloat16 could tie; those of the last batches are not rounded."""
    batches: list[torch.Tensor] = []
    raw_scores = RewardModel.raw_scores

    def recorded(self: RewardModel, batch: ScoreBatch) -> torch.Tensor:
        batches.append(raw_scores(self, batch))
        return batches[-1]

    monkeypatch.setattr(RewardModel, "raw_scores", recorded)
    trainer = fitted(pairs, tmp_path, epochs=1, validation=0.0, precision=precision, features=features)
    assert {parameter.dtype for parameter in trainer.lightning_module.head.parameters()} == {torch.float32}
    assert {value.dtype for value in load_file(tmp_path / "model" / "head.safetensors").values()} == {torch.float32}
    scores = batches[4].detach()  # of the last batch that was trained on
    assert (scores != scores.bfloat16().float()).float().mean() > 0.9


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ConfigError, match="pointwise -1: the weight of a loss must be 0 or more"):
        PRM(tiny_policy(byte_tokenizer()), AdamW(1e-3), pointwise=-1)
