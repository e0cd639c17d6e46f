"""Answer metrics over many questions, as torchmetrics; the scores themselves are in `common.answers`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torchmetrics import Metric

from common.answers import cover_match as cover_match
from common.answers import exact_match as exact_match
from common.answers import f1_score as f1_score
from common.answers import normalize_answer as normalize_answer


class _AnswerMetric(Metric):
    """Mean of a score over questions; NaN before the first. The states are sums, so processes add up."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    score: ClassVar[Callable[[str, str | Sequence[str]], float]]
    total: Tensor
    count: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, prediction: str | Sequence[str], answers: str | Sequence[str] | Sequence[Sequence[str]]) -> None:
        """One prediction with its answers, or a list of predictions with as many lists of answers.

        Raises:
            ValueError: the lists differ in length.
        """
        pairs = [(prediction, answers)] if isinstance(prediction, str) else zip(prediction, answers, strict=True)
        for one, aliases in cast(Iterable[tuple[str, Sequence[str]]], pairs):
            self.total += type(self).score(one, aliases)
            self.count += 1

    def compute(self) -> Tensor:
        return self.total / self.count


class ExactMatch(_AnswerMetric):
    """Share of questions whose prediction is exactly right, see `exact_match`."""

    score = staticmethod(exact_match)


class F1(_AnswerMetric):
    """Mean token F1 over questions, see `f1_score`."""

    score = staticmethod(f1_score)


class CoverMatch(_AnswerMetric):
    """Share of questions whose prediction contains an answer, see `cover_match`."""

    score = staticmethod(cover_match)
