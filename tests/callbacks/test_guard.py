"""The guard: what it says of which metrics, when, and that a resumed run hears the same."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from callbacks.guard import Guard, GuardError
from common.errors import ConfigError
from pipeline.fitting import fit
from pipeline.schema import Experiment, TrainerSettings
from tests.toy_rl import learn
from tests.toy_training import Line, Slope

OFF = {"entropy": None, "grad_norm": None, "format_rate": None, "logp_gap": None, "kl": None, "reward_drop": None}


class Scripted(Slope):
    """Logs the given values, one an epoch."""

    def __init__(self, **values: list[float]) -> None:
        super().__init__()
        self.values = {name.replace("__", "/"): series for name, series in values.items()}

    def on_train_epoch_start(self) -> None:
        self.log_dict({name: series[self.current_epoch] for name, series in self.values.items()})


def run(folder: Path, *guards: Guard, **values: list[float]) -> None:
    epochs = max(map(len, values.values()))
    fit(
        Scripted(**values),
        Line(),
        [*guards, ModelCheckpoint(save_last=True)],
        trainer=TrainerSettings(max_epochs=epochs),
        strategy="auto",
        experiment=Experiment("toy", {}, accelerator="cpu"),
        folder=folder,
        events=folder / "tensorboard" / "fit" / "0123",
    )


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "callbacks.guard"]


@pytest.mark.parametrize(
    ("limits", "values", "message"),
    [
        ({"entropy": 0.1}, {"entropy": [1, 0.05, 0.04]}, "iteration 2: entropy is 0.04, below 0.1 for 2 iterations"),
        ({"entropy": 0.1}, {"entropy": [0.05, 1, 0.05, 1]}, None),
        ({"grad_norm": 5}, {"grad_norm": [4, 6, math.nan]}, "iteration 2: grad_norm is nan, above 5 for 2 iterations"),
        ({"format_rate": 0.5}, {"format__valid_rate": [0.4, 0.3]}, "iteration 1: format/valid_rate is 0.3, below 0.5"),
        ({"logp_gap": 0.1}, {"logp_gap__mean": [0.2, 0.2]}, "iteration 1: logp_gap/mean is 0.2, above 0.1"),
        ({"kl": 0.1}, {"kl": [0.05, 0.2, 0.3]}, "iteration 2: kl is 0.3, above 0.1"),
        ({"zero_spread": 0.9}, {"frac_reward_zero_std": [1, 1]}, "iteration 1: frac_reward_zero_std is 1, above 0.9"),
        ({"zero_spread": 0.9}, {"frac_reward_zero_std": [0.9, 0.9]}, None),
        ({"kl": 0.1}, {"entropy": [0, 0, 0]}, None),
        ({"kl": 0.1}, {"kl": [math.nan, math.nan], "grad_norm": [0, 0]}, None),
        ({"kl": 0.1}, {"kl": [math.nan] * 3, "grad_norm": [0, math.nan, math.nan]}, "iteration 2: kl is nan"),
        ({}, {"entropy": [0, 0], "kl": [9, 9], "reward": [1, 0]}, None),
    ],
)
def test_a_metric_beyond_its_limit_for_long_enough_is_warned_of_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    limits: dict[str, float],
    values: dict[str, list[float]],
    message: str | None,
) -> None:
    values = {name: [float(value) for value in [*series, series[-1]]] for name, series in values.items()}
    with caplog.at_level(logging.WARNING, "callbacks.guard"):
        run(tmp_path, Guard(patience=2, **OFF | limits), **values)  # type: ignore[arg-type]
    messages = warnings(caplog)
    assert len(messages) == (message is not None)
    assert message is None or message in messages[0]


def test_a_reward_that_falls_from_its_best_is_a_collapse_and_one_lucky_iteration_is_not_the_best(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard(patience=2, **OFF | {"reward_drop": 0.25})  # type: ignore[arg-type]
    run(tmp_path / "a", guard, reward=[0.2, 1.0, 0.2, 0.4, 0.4, 0.4])  # best mean of two: 0.6
    assert warnings(caplog) == []
    guard = Guard(patience=2, **OFF | {"reward_drop": 0.25})  # type: ignore[arg-type]
    run(tmp_path / "b", guard, reward=[0.2, 0.6, 0.6, 0.3, 0.3, 0.3])
    assert ["iteration 4: reward is 0.3, its best was 0.6" in one for one in warnings(caplog)] == [True]


def test_stop_ends_the_run_with_the_reason_and_without_its_result(tmp_path: Path) -> None:
    guard = Guard(action="stop", patience=1, entropy=0.1)
    with pytest.raises(GuardError, match=r"guard stopped the run at iteration 1: entropy is 0.05, below 0.1; the pol"):
        run(tmp_path, guard, entropy=[0.5, 0.05, 0.5])
    assert not (tmp_path / "model").exists()
    with pytest.raises(GuardError, match=r"iteration 1: entropy is 0.05"):  # the same command, from its checkpoint
        run(tmp_path, Guard(action="stop", patience=1, entropy=0.1), entropy=[9.0, 0.05, 0.5])


@pytest.mark.parametrize(
    ("limits", "metric"),
    [
        ({"entropy": 99}, "entropy"),
        ({"grad_norm": -1}, "grad_norm"),
        ({"format_rate": 2}, "format/valid_rate"),
        ({"logp_gap": -1}, "logp_gap/mean"),
        ({"kl": -1}, "kl"),
        ({"zero_spread": -1}, "frac_reward_zero_std"),
        ({"reward_drop": -1}, "reward"),
    ],
)
def test_whatever_is_watched_is_what_reinforcement_learning_logs(
    tmp_path: Path, limits: dict[str, float], metric: str
) -> None:
    """Limits that no training keeps: a metric of another name would be checked no more, and nobody warned."""
    guard = Guard(action="stop", patience=1, **OFF | limits)  # type: ignore[arg-type]
    (name,) = limits
    with pytest.raises(GuardError, match=rf"iteration \d: {metric} is [^;]+; .*\(callbacks\.<guard>\.{name}\)"):
        learn(tmp_path, callbacks=[guard])


def test_a_resumed_run_counts_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Leave(Guard):
        """Leaves as a crash would, after two epochs."""

        def on_train_epoch_start(self, trainer: Trainer, pl_module: object) -> None:
            if trainer.current_epoch == 2:
                raise KeyboardInterrupt

        @property
        def state_key(self) -> str:
            return Guard(patience=3, entropy=0.1).state_key

    entropy = [0.05, 0.05, 0.05, 0.05]
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run(tmp_path, Leave(patience=3, entropy=0.1), entropy=entropy)
    assert warnings(caplog) == []
    run(tmp_path, Guard(patience=3, entropy=0.1), entropy=entropy)
    assert ["iteration 2: entropy" in one for one in warnings(caplog)] == [True]


def test_guards_of_other_settings_count_by_themselves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As where one warns of all and another stops at a gap: their states are kept under different names."""
    warns, stops = Guard(patience=2, entropy=0.1), Guard(action="stop", patience=3, **OFF | {"kl": 0.1})  # type: ignore[arg-type]
    with pytest.raises(GuardError, match=r"iteration 2: kl is 0\.3"):
        run(tmp_path, warns, stops, entropy=[0.05, 0.05, 0.05], kl=[0.3, 0.3, 0.3])
    assert ["iteration 1: entropy" in one for one in warnings(caplog)] == [True]
    saved = torch.load(next(tmp_path.rglob("last.ckpt")), weights_only=True)["callbacks"]
    assert (saved[warns.state_key]["beyond"]["entropy"], saved[stops.state_key]["beyond"]["kl"]) == (2, 2)


def test_no_patience_is_refused() -> None:
    with pytest.raises(ConfigError, match="patience 0 must be at least 1"):
        Guard(patience=0)
