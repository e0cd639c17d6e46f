"""Selective-Context (Li et al. 2023, arXiv 2310.06201): units of little self-information are left out.

A language model reads each sentence alone; the question plays no part. Of all units of a query's passages those below
the percentile of the ratio are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from common.costs import counted
from common.errors import ConfigError
from envs.protocols.rendering import shown_first
from envs.types import Hit
from modules.text_surprise import TextSurprise

_BORDER = re.compile(r"(?<=[.?])\s+")


class SelectiveContext:
    """Shows the words or sentences of the most self-information, after the title of their passage.

    Args:
        scorer: the language model; the authors' is `gpt2`.
        ratio: percentile, as a share, of the information below which a unit is left out.
        units: what is left out as a whole.
        pool: of the information of a unit's tokens: the code's mean or the paper's sum.

    Raises:
        ConfigError: a setting is out of range.
    """

    def __init__(
        self,
        scorer: TextSurprise,
        *,
        ratio: float = 0.5,
        units: Literal["word", "sentence"] = "word",
        pool: Literal["mean", "sum"] = "mean",
    ) -> None:
        if not 0 <= ratio <= 1 or units not in ("word", "sentence") or pool not in ("mean", "sum"):
            settings = f"ratio {ratio}, units {units}, pool {pool}"
            raise ConfigError(f"{settings}: ratio must be in [0, 1], units word or sentence, pool mean or sum")
        self.scorer, self.ratio, self.units, self.pool = scorer, ratio, units, pool

    @property
    def counts(self) -> Counter[str]:
        """What the scorer has read."""
        return counted(self.scorer)

    def compress(self, question: str, hits: Sequence[Hit]) -> list[Hit]:
        """All hits; nothing is shown of those without a unit that stays."""
        sentences = [(place, one) for place, hit in enumerate(hits) for one in _sentences(hit.document.text)]
        read = [self.scorer.read(text) for _, text in sentences]
        surprise = self.scorer.of([((), words.ids) for words in read])
        units: list[tuple[int, str]] = []
        information: list[float] = []
        for (place, text), words, values in zip(sentences, read, surprise, strict=True):
            if self.units == "sentence":
                units.append((place, text))
                information.append(pooled(values, self.pool))
            else:
                units += [(place, word) for word in words.words]
                information += words.of_words(values, mean=self.pool == "mean")
        left: list[list[str]] = [[] for _ in hits]
        for kept in most_informative(information, self.ratio):
            place, text = units[kept]
            left[place].append(text)
        titled = (f"{hit.document.title}: {' '.join(one)}" if one else "" for hit, one in zip(hits, left, strict=True))
        return shown_first(hits, titled)


def pooled(values: Sequence[float], pool: str) -> float:
    """Information of a unit from that of its tokens; 0 of none."""
    return sum(values) / (len(values) if pool == "mean" and values else 1)


def most_informative(information: Sequence[float], ratio: float) -> list[int]:
    """Places of the units that are not below the percentile of the ratio, in order."""
    if not information:
        return []
    threshold = np.quantile(information, ratio)  # linear interpolation
    return [place for place, value in enumerate(information) if value >= threshold]


def _sentences(text: str) -> list[str]:
    """Sentences of a text whose white space is collapsed: they end at `.` or `?` and a blank."""
    return [one for one in _BORDER.split(" ".join(text.split())) if one]
