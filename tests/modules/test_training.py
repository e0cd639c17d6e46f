"""A step with several losses: each has its own count, learning rate and clipping, and no batch or rank changes that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Trainer
from torch import Tensor

import train
from common.errors import ConfigError
from modules.training import TrainingError
from tests import forked
from tests.toy_training import ActorCritic, Rows, quiet_trainer

ROOT = Path(train.__file__).parent


def fit(
    folder: Path, *, micro_batch: int = 8, clip: float | None = None, **settings: Any
) -> tuple[Any, dict[str, Any]]:
    """Two steps in this process; the module, and what was logged last."""
    folder.mkdir(exist_ok=True)
    module = ActorCritic(str(folder), **settings)
    trainer = quiet_trainer(max_epochs=2, gradient_clip_val=clip)
    trainer.fit(module, datamodule=Rows(micro_batch))
    return module, {name: float(value) for name, value in trainer.callback_metrics.items()}


def gradients(folder: Path, step: int = 0, rank: int = 0) -> dict[str, Tensor]:
    return torch.load(folder / f"{step}-{rank}.pt")


def norm(gradients: dict[str, Tensor], owner: str) -> float:
    return float(torch.cat([one.flatten() for name, one in gradients.items() if name.startswith(owner)]).norm())


def test_each_loss_is_a_mean_over_its_own_count(tmp_path: Path) -> None:
    _, logged = fit(tmp_path)
    start = ActorCritic(str(tmp_path))
    x, tokens = (0.1 + torch.arange(8) / 8)[:, None], 1 + torch.arange(8) % 4
    actor = -(tokens * torch.log_softmax(start.model(x), dim=-1)[:, 0]).sum() / 20
    critic = ((start.critic(x) - 2 * x) ** 2).sum() / 8
    (actor + critic).backward()
    for name, parameter in start.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(gradients(tmp_path)[name], parameter.grad, atol=1e-6), name
    assert {"loss", "loss/value", "grad_norm", "grad_norm/value", "lr", "lr/value"} <= logged.keys()


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_accumulated_batches_train_as_one(tmp_path: Path, micro_batch: int) -> None:
    (one, whole), (many, cut) = fit(tmp_path / "1"), fit(tmp_path / "2", micro_batch=micro_batch)
    assert cut == pytest.approx(whole, rel=1e-5)
    for name, weight in one.state_dict().items():
        assert torch.allclose(many.state_dict()[name], weight, atol=1e-6), name


def test_a_loss_has_its_own_learning_rate(tmp_path: Path) -> None:
    """Adam's first step moves a weight by the learning rate, whatever its gradient."""
    module, logged = fit(tmp_path, critic_lr=0.1)
    start = ActorCritic(str(tmp_path)).state_dict()
    moved = {name: float((weight - start[name]).abs().max()) for name, weight in module.state_dict().items()}
    assert moved["model.weight"] == pytest.approx(0.02, rel=0.05), "two steps"
    assert moved["critic.weight"] == pytest.approx(0.2, rel=0.05)
    assert (logged["lr"], logged["lr/value"]) == pytest.approx((0.01, 0.1))


def test_losses_are_clipped_apart(tmp_path: Path) -> None:
    free, both, own = tmp_path / "free", tmp_path / "both", tmp_path / "own"
    fit(free)
    fit(both, clip=0.05)
    _, logged = fit(own, clip=0.05, critic_clip=0.5)
    before, same, apart = gradients(free), gradients(both), gradients(own)
    assert min(norm(before, "model"), norm(before, "critic")) > 0.5 > 0.05
    assert (norm(same, "model"), norm(same, "critic")) == pytest.approx((0.05, 0.05), rel=1e-4)
    assert (norm(apart, "model"), norm(apart, "critic")) == pytest.approx((0.05, 0.5), rel=1e-4)
    assert logged["grad_norm"] > 0.05, "logged before clipping"


def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    """With accumulation, clipping and a learning rate of its own; the ranks' tokens differ in number."""
    module = {"target": "tests.toy_training:ActorCritic", "critic_lr": 0.1, "critic_clip": 0.5}
    for devices in (1, 2):
        folder = tmp_path / str(devices)
        (folder / "runs" / "gradients").mkdir(parents=True)
        stage = {
            "module": module | {"folder": str(folder / "runs" / "gradients")},
            "data": {"target": "tests.toy_training:Rows", "micro_batch": 4},
            "trainer": {"max_epochs": 2, "gradient_clip_val": 0.05, "strategy": "ddp" if devices == 2 else "auto"},
        }
        path = folder / "toy.yaml"
        experiment = {"experiment": "toy", "output": str(folder / "runs"), "accelerator": "cpu", "devices": devices}
        path.write_text(yaml.safe_dump(experiment | {"stages": {"fit": stage}}))
        ended = forked.run("--config", str(path))
        assert ended.returncode == 0, ended.stderr
    for step in (0, 1):
        one = gradients(tmp_path / "1" / "runs" / "gradients", step)
        for rank in (0, 1):
            two = gradients(tmp_path / "2" / "runs" / "gradients", step, rank)
            assert all(torch.allclose(two[name], one[name], atol=1e-6) for name in one)


def test_a_loss_that_is_not_finite_ends_the_run_and_is_named(tmp_path: Path) -> None:
    class Broken(ActorCritic):
        def training_step(self, batch: Tensor, index: int) -> Tensor:
            return self.mean_losses(
                {"policy": (batch.sum(), batch.sum()), "value": (batch.sum() * float("nan"), batch.sum())}
            )

    module = Broken(str(tmp_path))
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(TrainingError, match="the value loss is nan at optimiser step 0"):
        trainer.fit(module, datamodule=Rows())


def test_sums_must_name_the_losses_in_their_order(tmp_path: Path) -> None:
    one = (torch.ones(()), torch.ones(()))
    with pytest.raises(ValueError, match=r"sums of \['value', 'policy'\] for the losses \['policy', 'value'\]"):
        ActorCritic(str(tmp_path)).mean_losses({"value": one, "policy": one})


def test_several_losses_are_clipped_by_norm_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="clipped by norm"):
        ActorCritic(str(tmp_path)).configure_gradient_clipping(None, 1.0, "value")


class InBfloat16(ActorCritic):
    """Half of its weights are bfloat16."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.critic.bfloat16()

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        one = sum((parameter.float().sum() for parameter in self.parameters()), torch.zeros(()))
        return self.mean_losses({"policy": (one, torch.ones(())), "value": (one * 0, torch.ones(()))})


def test_weights_too_coarse_to_train_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for module in (ActorCritic(str(tmp_path)), InBfloat16(str(tmp_path))):
        caplog.clear()
        quiet_trainer(max_epochs=1).fit(module, datamodule=Rows())
        warned = "weights in bfloat16 train: a step smaller than a 256th of a weight is lost" in caplog.text
        assert warned == isinstance(module, InBfloat16)


def test_float16_is_refused_whose_sums_overflow(tmp_path: Path) -> None:
    trainer = Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, precision="16-true")
    with pytest.raises(ConfigError, match=r"trainer.precision 16-true: .* use bf16-mixed"):
        trainer.fit(ActorCritic(str(tmp_path)), datamodule=Rows())
