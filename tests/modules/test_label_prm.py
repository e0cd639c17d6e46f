"""Fitting a reward model on steps that were judged one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer

from common.errors import ConfigError
from datamodules.label_data import LabelData
from envs.protocols.prorag import ProRAG
from modules.label_prm import LabelPRM
from modules.optimizer import AdamW
from modules.reward_model.model import load_reward_model
from tests.labelled import labelled_queries, write_labels
from tests.tiny import byte_tokenizer, tiny_policy
from tests.toy_training import quiet_trainer


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    byte_tokenizer().save_pretrained(folder)
    return write_labels(folder, ProRAG(folder, instruction=""), 20)


def fitted(labels: Path, folder: Path, *, epochs: int = 4, lr: float = 3e-3, **settings: Any) -> Trainer:
    module = LabelPRM(tiny_policy(byte_tokenizer()), AdamW(lr), **settings)
    trainer = quiet_trainer(max_epochs=epochs, num_sanity_val_steps=0, default_root_dir=folder)
    trainer.fit(module, datamodule=LabelData(labels, batch_size=4, micro_batch=2, validation=0.3))
    module.export(folder)
    return trainer


@pytest.mark.parametrize("losses", [{"ranking": 0.0}, {"pointwise": 0.0}, {}], ids=["pointwise", "ranking", "both"])
def test_it_learns_to_tell_right_steps_from_wrong_ones_of_questions_it_was_not_shown(
    labels: Path, tmp_path: Path, losses: dict[str, float]
) -> None:
    trainer = fitted(labels, tmp_path, **losses)
    assert trainer.callback_metrics["prm/pair_accuracy"] >= 0.95
    scorer = load_reward_model(tmp_path / "model", device="cpu")
    others = labelled_queries(ProRAG(labels, instruction=""), range(20, 26))
    scores = torch.cat(scorer.score([one.episode for one in others]))
    right = torch.tensor([one.labels[0] == 1 for one in others])
    assert (scores[right][:, None] > scores[~right][None]).float().mean() >= 0.95, "of different questions too"
    assert scores[right].mean() > 0 > scores[~right].mean(), "calibrated scores have their zero between the two"


@pytest.mark.parametrize(
    ("losses", "expected"), [({"ranking": 0.0}, 1.0), ({"pointwise": 0.0}, 1.0), ({"ranking": 0.5}, 1.5)]
)
def test_before_any_step_every_score_is_zero_and_a_step_costs_log_two(
    labels: Path, tmp_path: Path, losses: dict[str, float], expected: float
) -> None:
    """Of the ranking loss too: a group weighs as much as it has steps."""
    metrics = fitted(labels, tmp_path, epochs=1, lr=0.0, **losses).callback_metrics
    assert float(metrics["val_loss"]) == pytest.approx(expected * 0.693147, abs=1e-5)
    assert float(metrics["loss"]) == pytest.approx(expected * 0.693147, abs=1e-5)
    assert float(metrics["prm/pair_accuracy"]) == 0


def test_the_same_seed_gives_the_same_weights(labels: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        fitted(labels, tmp_path / name, epochs=1, features=True)
    for file in ("model.safetensors", "head.safetensors", "reward_model.json"):
        assert (tmp_path / "first/model" / file).read_bytes() == (tmp_path / "second/model" / file).read_bytes()


@pytest.mark.parametrize("weights", [{"pointwise": 0.0, "ranking": 0.0}, {"ranking": -1.0}, {"min_gap": 0.0}])
def test_weights_that_mean_nothing_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="one of them above 0"):
        LabelPRM(tiny_policy(byte_tokenizer()), AdamW(1e-3), **weights)  # type: ignore[arg-type]


def test_with_features_it_begins_as_their_fit_which_is_better_than_nothing(labels: Path, tmp_path: Path) -> None:
    """Before any update, and on questions that the fit has not seen; the linear part is still zero."""
    without = fitted(labels, tmp_path / "without", epochs=1, lr=0.0).callback_metrics
    begun = fitted(labels, tmp_path / "begun", epochs=1, lr=0.0, features=True)
    assert begun.callback_metrics["val_loss"] < without["val_loss"] - 0.01
    head = load_reward_model(tmp_path / "begun" / "model", device="cpu").head
    assert head.linear.weight.abs().max() == 0
    assert head.features is not None
    assert head.features.weight_KF.abs().max() > 0
