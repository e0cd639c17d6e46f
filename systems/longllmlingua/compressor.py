"""LongLLMLingua (Jiang et al. 2023, arXiv 2310.06839): passages ranked by the question's surprise, then thinned.

A passage ranks the higher, the less the question surprises a language model after it. Passages are taken in this order
until the budget is spent. Of each, those words stay whose surprise the question lowers most; the first passages keep
more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from common.costs import counted
from common.errors import ConfigError
from envs.protocols.rendering import shown_first
from envs.types import Hit
from modules.text_surprise import TextSurprise, Words

Order = Literal["sort", "original", "two_stage"]
ANSWERABLE = " We can get the answer to this question in the given documents."


class LongLLMLingua:
    """Shows the words of the first passages that the question explains, and nothing of the others.

    Args:
        scorer: the language model; the authors' is `NousResearch/Llama-2-7b-hf`.
        rate: tokens that are to be left, as a share of those of passages and question.
        budget: tokens by which the passages that are kept may exceed that.
        order: of the passages shown: by rank, as found, or the best at both ends.
        dynamic: by how much the share that the first passage keeps exceeds the mean, and the last falls below it.
        contrast: whether a word's worth is how much the question lowers its surprise, and not its surprise alone.

    Raises:
        ConfigError: a setting is out of range.
    """

    def __init__(
        self,
        scorer: TextSurprise,
        *,
        rate: float = 0.55,
        budget: int = 100,
        order: Order = "sort",
        dynamic: float = 0.3,
        contrast: bool = True,
    ) -> None:
        if not 0 < rate <= 1 or budget < 0 or not 0 <= dynamic <= 1 or order not in ("sort", "original", "two_stage"):
            settings = f"rate {rate}, budget {budget}, dynamic {dynamic}, order {order}"
            raise ConfigError(
                f"{settings}: rate in (0, 1], budget >= 0, dynamic in [0, 1], sort, original or two_stage"
            )
        self.scorer, self.rate, self.budget = scorer, rate, budget
        self.order: Order = order
        self.dynamic, self.contrast = dynamic, contrast

    @property
    def counts(self) -> Counter[str]:
        """What the scorer has read."""
        return counted(self.scorer)

    def compress(self, question: str, hits: Sequence[Hit]) -> list[Hit]:
        """All hits, those that are shown in their order."""
        passages = [self.scorer.read(f"{hit.document.title}\n{hit.document.text}") for hit in hits]
        lengths = [len(passage.ids) for passage in passages]
        asked = self.scorer.read(f"{question}\n\n").ids
        sought = self.scorer.read(f"\n\n{question}{ANSWERABLE}").ids
        surprise = self.scorer.of([(passage.ids, sought) for passage in passages])
        ranked = coarse_order(surprise)
        target = target_tokens(self.rate, len(self.scorer.read(question).ids), lengths)
        ranked = ranked[: within_budget([lengths[place] for place in ranked], target + self.budget)]
        ratio = target / (sum(lengths[place] + 2 for place in ranked) + 1)
        ratios = dict(zip(ranked, keep_ratios(len(ranked), ratio, self.dynamic), strict=True))
        shown = dict.fromkeys(range(len(hits)), "")
        before: tuple[int, ...] = ()
        for place in arranged(ranked, self.order):
            shown[place] = " ".join(self._thinned(passages[place], ratios[place], asked, before))
            before += self.scorer.read(f"{shown[place]}\n").ids
        places = [*arranged(ranked, self.order), *(place for place in shown if place not in ratios)]
        return shown_first([hits[place] for place in places], [shown[place] for place in places])

    def _thinned(self, passage: Words, ratio: float, asked: tuple[int, ...], before: tuple[int, ...]) -> list[str]:
        """The words of a passage that stay, after what stays of the passages before it."""
        if ratio >= 1:
            return passage.words
        alone, *given = self.scorer.of([(before, passage.ids)] + self.contrast * [(asked + before, passage.ids)])
        worth = [own - other for own, other in zip(alone, *given, strict=True)] if given else alone
        kept = highest(passage.of_words(worth), ratio)
        return [passage.words[place] for place in kept]


def target_tokens(rate: float, question: int, passages: Sequence[int]) -> float:
    """Tokens that are to be left of the passages: a share of all, less the question, which stays as it is."""
    return rate * (question + sum(passages)) - question


def coarse_order(surprise: Sequence[Sequence[float]]) -> list[int]:
    """Passages by the mean surprise of the question's tokens after each, the lowest first."""
    means = [fmean(values) for values in surprise]
    return sorted(range(len(means)), key=means.__getitem__)


def within_budget(lengths: Sequence[int], budget: float) -> int:
    """How many passages are taken until the budget is exceeded; the one that exceeds it is taken too."""
    for number, length in enumerate(lengths, 1):
        budget -= length
        if budget < 0:
            return number
    return len(lengths)


def keep_ratios(count: int, ratio: float, dynamic: float) -> list[float]:
    """The share that each passage keeps, by rank: the mean, more at first and less at last, within 0 and 1."""
    shifts = [dynamic * (count - 1 - 2 * rank) / (count - 1) if count > 1 else 0.0 for rank in range(count)]
    return [min(1.0, max(0.0, ratio + shift)) for shift in shifts]


def arranged(ranked: Sequence[int], order: Order) -> list[int]:
    """Passages of a ranking in the order of the prompt; `two_stage`: ranks 0, 2, 4, …, then the odd ones backwards."""
    if order == "original":
        return sorted(ranked)
    return [*ranked[::2], *ranked[1::2][::-1]] if order == "two_stage" else list(ranked)


def highest(values: Sequence[float], ratio: float) -> list[int]:
    """Places of the highest share of the values, in order; of equal ones the earlier."""
    ranked = sorted(range(len(values)), key=lambda place: -values[place])
    return sorted(ranked[: int(len(values) * ratio)])
