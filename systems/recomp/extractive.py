"""Extractive compressor of RECOMP (Xu et al. 2023, arXiv 2310.04408): the sentences nearest to the question."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from common.costs import read_by
from common.errors import ConfigError
from envs.protocols.rendering import shown_first
from envs.retrievers.encoder import Encoder
from envs.types import Hit

_BORDER = re.compile(r"(?<!\b[A-Z]\.)(?<=[.!?])\s+")  # not after an initial: "J. K. Rowling" is one sentence
_SHORTEST = 6  # characters of a sentence


class ExtractiveCompressor:
    """Shows the sentences of the highest dot product with the question, in the order of the documents, without titles.

    Encoders of the authors: `fangyuan/nq_extractive_compressor`, `fangyuan/tqa_extractive_compressor`,
    `fangyuan/hotpotqa_extractive_compressor`, all with mean pooling and `normalize: false`.

    Args:
        encoder: of questions and sentences.
        sentences: how many are shown; the paper's 1, and 2 for HotpotQA.

    Raises:
        ConfigError: none would be shown.
    """

    def __init__(self, encoder: Encoder, *, sentences: int = 2) -> None:
        if sentences < 1:
            raise ConfigError(f"sentences is {sentences}; it must be at least 1")
        self.encoder, self.sentences = encoder, sentences
        self.counts: Counter[str] = Counter()

    def compress(self, question: str, hits: Sequence[Hit]) -> list[Hit]:
        """All hits; of those without a chosen sentence nothing is shown."""
        sentences = [(place, one) for place, hit in enumerate(hits) for one in split_sentences(hit.document.text)]
        texts = [text for _, text in sentences]
        self.counts[read_by("encoder")] += sum(self.encoder.lengths([question])) + sum(self.encoder.lengths(texts))
        scores_N = self.encoder.encode_passages(texts) @ self.encoder.encode_queries([question])[0]
        kept: list[list[str]] = [[] for _ in hits]
        for chosen in best(scores_N, self.sentences):
            place, text = sentences[chosen]
            kept[place].append(text)
        return shown_first(hits, map(" ".join, kept))


def split_sentences(text: str) -> list[str]:
    """Sentences of a passage: they end at `.`, `!` or `?` and a blank; those of at most five characters are dropped."""
    return [one for one in _BORDER.split(text.strip()) if len(one) >= _SHORTEST]


def best(scores_N: np.ndarray | Sequence[float], count: int) -> list[int]:
    """Places of the highest scores, in order; the earlier of equal ones."""
    ranked = sorted(range(len(scores_N)), key=lambda place: -float(scores_N[place]))
    return sorted(ranked[:count])
