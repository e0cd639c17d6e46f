"""Confidence gate on the answer's reward: no token of a query may be improbable (β-GRPO, arXiv 2505.17281)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from common.answers import cover_match, exact_match, f1_score
from common.errors import ConfigError
from envs.interfaces import RewardContext
from envs.text import Codec
from envs.types import Episode

_CORRECT: Mapping[str, Callable[[str, Sequence[str]], float]] = {
    "exact": exact_match,
    "cover": cover_match,
    "f1": f1_score,
}


def confident_queries(
    episodes: Sequence[Episode],
    context: RewardContext,
    *,
    beta: float = 0.4,
    correct: Literal["exact", "cover", "f1"] = "exact",
) -> Tensor:
    """`[B]`: how right the answer is, 0 where a query has a token of a probability below `beta`.

    An episode without a search counts as sure. The probabilities are those that the tokens were sampled with, so
    they depend on the sampling temperature. Queries that the protocol wrote do not count.

    Raises:
        ConfigError: `beta` is not in [0, 1].
    """
    if not 0 <= beta <= 1:
        raise ConfigError(f"confident_queries: beta {beta} must be in [0, 1]")
    codec, match = context.protocol.codec, _CORRECT[correct]
    rewards: list[float] = []
    for episode in episodes:
        confidence = math.exp(min(query_logps(episode, codec), default=0.0))
        sure = math.nan if math.isnan(confidence) else float(confidence >= beta)
        rewards.append(match(episode.answer, episode.question.answers) * sure)
    return torch.tensor(rewards, dtype=torch.float32)


def query_logps(episode: Episode, codec: Codec) -> list[float]:
    """Log-probs of the tokens of all queries that were sampled; NaN for a query that is not in its turn's text."""
    logps: list[float] = []
    for turn in episode.turns:
        if turn.action.kind != "query" or turn.finish == "scripted":
            continue
        start = codec.decode(turn.action_ids).rfind(turn.action.text)
        if start < 0:
            return [math.nan]
        first, last = codec.token_index(turn.action_ids, [start, start + len(turn.action.text)])
        logps += turn.action_logps[first:last]
    return logps
