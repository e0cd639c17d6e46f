"""Scores of Self-RAG: the gate, and the value of a segment, from log-probs of reflection tokens. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import ConfigError

_SUPPORT = (1.0, 0.5, 0.0)
_UTILITY = (1.0, 0.5, 0.0, -0.5, -1.0)


def relevance(logps: Sequence[float]) -> float:
    """p(relevant) among relevant and irrelevant; 0 where nothing is known of them."""
    return _expected(logps, (1.0, 0.0))


def support(logps: Sequence[float]) -> float:
    """Expected support among fully (1), partially (0.5) and not supported (0); 0 where nothing is known of them."""
    return _expected(logps, _SUPPORT)


def utility(logps: Sequence[float]) -> float:
    """Expected utility, 1 for 5 down to -1 for 1; 0 where nothing is known of them."""
    return _expected(logps, _UTILITY)


def retrieval(logp_retrieve: float, logp_not: float, *, official: bool = False) -> float:
    """The share of p(retrieve) in both, which the gate compares with its threshold.

    `official`: the released code divides the log-probs themselves, so that what is likelier gets the smaller share.
    """
    if official:
        return logp_retrieve / (logp_retrieve + logp_not)
    return _expected((logp_retrieve, logp_not), (1.0, 0.0))


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the parts of a segment's score, the paper's by default.

    Attributes:
        relevance, support, utility: of the three expectations; the short form of the released code has utility 1.
        sequence: whether the probability of the segment, the mean over its tokens, is added.

    Raises:
        ConfigError: a weight is negative.
    """

    relevance: float = 1.0
    support: float = 1.0
    utility: float = 0.5
    sequence: bool = True

    def __post_init__(self) -> None:
        if min(self.relevance, self.support, self.utility) < 0:
            raise ConfigError(f"{self}: no weight may be negative")

    def score(self, logps: Sequence[float], *, relevance: float, support: float, utility: float) -> float:
        """Score of a segment with these log-probs of its own tokens."""
        own = math.exp(sum(logps) / len(logps)) if self.sequence and logps else 0.0
        return own + self.relevance * relevance + self.support * support + self.utility * utility


def _expected(logps: Sequence[float], values: Sequence[float]) -> float:
    """Mean of the values, weighted by the probabilities; only their ratios count."""
    if not logps or max(logps) == -math.inf:
        return 0.0
    shares = [math.exp(logp - max(logps)) for logp in logps]
    return sum(share * value for share, value in zip(shares, values, strict=True)) / sum(shares)
