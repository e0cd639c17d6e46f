"""Answer metrics: exact match, F1 and cover match, over aliases, with one normaliser.

They follow the official HotpotQA evaluation (Yang et al. 2018, hotpot_evaluate_v1.py, itself after SQuAD's), with one
difference: an empty prediction scores 0 even where an answer normalises to nothing ("The"), for it says nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torchmetrics import Metric

from envs.answers import normalize_answer as normalize_answer

_CLOSED = frozenset({"yes", "no", "noanswer"})


def exact_match(prediction: str, answers: str | Sequence[str]) -> float:
    """1 if the normalised prediction equals any normalised answer, else 0."""
    predicted = normalize_answer(prediction)
    return float(predicted in _normalized(answers))


def f1_score(prediction: str, answers: str | Sequence[str]) -> float:
    """Bag-of-tokens F1, the highest over the answers, in [0, 1].

    Where the prediction or an answer is yes, no or noanswer and they differ, that answer scores 0: no part of a verdict
    is right.
    """
    predicted = normalize_answer(prediction)
    return max((_token_f1(predicted, answer) for answer in _normalized(answers)), default=0.0)


def cover_match(prediction: str, answers: str | Sequence[str]) -> float:
    """1 if any normalised answer is a substring, by characters, of the normalised prediction, else 0.

    HiPRAG's measure (there with another normaliser); it forgives long predictions and counts "no" inside "nobody".
    """
    predicted = normalize_answer(prediction)
    return float(any(answer in predicted for answer in _normalized(answers)))


def _normalized(answers: str | Sequence[str]) -> list[str]:
    """The answers that still say something once normalised."""
    aliases = [answers] if isinstance(answers, str) else answers
    return [answer for answer in map(normalize_answer, aliases) if answer]


def _token_f1(predicted: str, answer: str) -> float:
    if predicted != answer and (predicted in _CLOSED or answer in _CLOSED):
        return 0.0
    predicted_tokens, answer_tokens = predicted.split(), answer.split()
    shared = (Counter(predicted_tokens) & Counter(answer_tokens)).total()
    return 2 * shared / (len(predicted_tokens) + len(answer_tokens))


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
