"""A reward model that is refreshed on the rollouts of a random policy, and a judge of its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lightning.pytorch import LightningModule, Trainer

from callbacks.refresh import RewardModelRefresh
from envs.siblings import Candidate
from modules.reward_model.model import RewardModel, untrained_reward_model
from tests.toy_rl import small_policy


def reward_model() -> RewardModel:
    """Over the small tokenizer; all its scores are 0."""
    return untrained_reward_model(small_policy(3), read_at="action")


def save_reward_model(folder: Path) -> None:
    """The same on disk, where a config finds it."""
    reward_model().save(folder)


class EvenEnd:
    """Right is a step whose last token has an even number."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.asked: list[str] = []

    def label(self, candidates: Sequence[Candidate]) -> list[float | None]:
        self.asked += [candidate.episode.turns[-1].uid for candidate in candidates]
        self.counts["account/judge_calls"] += len(candidates)
        return [float(candidate.episode.turns[-1].action_ids[-1] % 2 == 0) for candidate in candidates]


class RefreshInAnyFormat(RewardModelRefresh):
    """Also learns from steps out of format: a random policy writes hardly any others."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule, *arguments: Any) -> None:
        with patch("datamodules.step_paths.can_be_judged", lambda episode: True):
            super().on_train_epoch_end(trainer, pl_module)
