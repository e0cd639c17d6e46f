"""Diagnostics of credit: they change nothing, and log what they see before the iteration is trained on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers.logger import DummyLogger

from callbacks.credit_diagnostics import CreditDiagnostics
from common.errors import ConfigError
from envs.types import Episode
from tests.toy_rl import learn


class Blind:
    """Knows of every step that it is a first hop."""

    def judge(self, episode: Episode) -> Any:
        steps = len(episode.steps)
        return SimpleNamespace(valid=(True,) * steps, settled=(1,) * steps, open=0)


class Kept(DummyLogger, Callback):
    """A logger of a run that has none: it keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[dict[str, float]] = []

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        trainer.logger = self

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.logged.append(dict(metrics))


def test_training_is_the_same_to_the_bit_and_gradients_are_seen_now_and_then(tmp_path: Path) -> None:
    kept = Kept()
    seen, _, _ = learn(tmp_path, iterations=3, callbacks=[CreditDiagnostics(Blind(), gradients=2), kept])
    plain, _, _ = learn(tmp_path, iterations=3)
    ours, theirs = seen.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    told = [one for one in kept.logged if "event/malformed/share" in one]
    assert len(told) == 3
    assert ["credit/signal_to_noise" in one for one in told] == [True, False, True]
    for one in told:
        assert sum(value for tag, value in one.items() if tag.endswith("/share")) == pytest.approx(1)


def test_it_needs_a_rollout_and_says_so() -> None:
    with pytest.raises(ConfigError, match="needs a callbacks"):
        CreditDiagnostics(Blind()).setup(SimpleNamespace(callbacks=[]), SimpleNamespace(), "fit")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="gradients -1 must be 0 or more"):
        CreditDiagnostics(Blind(), gradients=-1)
