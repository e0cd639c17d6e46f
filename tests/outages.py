"""Components that fail: now and then, or always."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from common.errors import RetrievalError
from envs.interfaces import Retriever, RewardContext
from envs.pairs import Candidate, Verdict
from envs.types import Episode, Hit
from modules.sft import SFT


class Flaky:
    """A retriever every `every`th call of which fails."""

    def __init__(self, retriever: Retriever, every: int) -> None:
        self.retriever, self.every, self.calls = retriever, every, 0

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.calls += 1
        if self.calls % self.every == 0:
            raise RetrievalError("the line is dead")
        return self.retriever.search(queries, k)


class Absent:
    """A judge that has no answer for every `every`th group of siblings, and for every such single step."""

    def __init__(self, judge: Any, every: int) -> None:
        self.judge, self.every = judge, every

    def compare(self, groups: Sequence[Sequence[Candidate]]) -> list[tuple[Verdict, ...] | None]:
        return self._without(self.judge.compare(groups))

    def label(self, candidates: Sequence[Candidate]) -> list[float | None]:
        return self._without(self.judge.label(candidates))

    def _without(self, answers: Sequence[Any]) -> list[Any]:
        return [None if number % self.every == 0 else answer for number, answer in enumerate(answers)]


class NotANumber(SFT):
    """Loses its number at the second step."""

    def mean_loss(self, total: Tensor, count: Tensor) -> Tensor:
        return super().mean_loss(total * math.nan if self.global_step else total, count)


def even(episodes: Sequence[Episode], context: RewardContext) -> Tensor:
    """An outcome that is the same for all episodes."""
    return torch.ones(len(episodes))
