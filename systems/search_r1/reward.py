"""Search-R1's staged reward: the answer first, then the format, then what was retrieved (arXiv 2505.15117).

The reward of the first paper (arXiv 2503.09516) is `modules.rewards.answer:answer_exact`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from common.answers import cover_match, exact_match
from envs.interfaces import RewardContext
from envs.types import Episode
from modules.rewards.search_r1 import staged


def staged_answer(
    episodes: Sequence[Episode],
    context: RewardContext,
    *,
    lambda_f: float = 0.2,
    lambda_r: float = 0.0,
    lambda_a: float = 0.1,
) -> Tensor:
    """`[B]`: `staged` by exact match, the protocol's verdict on the format, and the passages that were found."""
    return staged(
        torch.tensor([exact_match(episode.answer, episode.question.answers) for episode in episodes]),
        torch.tensor([context.protocol.valid(episode) for episode in episodes]),
        torch.tensor([bool(episode.answer) for episode in episodes]),
        torch.tensor([_retrieved_gold(episode) for episode in episodes]),
        lambda_f=lambda_f,
        lambda_r=lambda_r,
        lambda_a=lambda_a,
    )


def _retrieved_gold(episode: Episode) -> bool:
    """Whether a normalised gold answer is a substring of a normalised passage that a search found."""
    passages = (f"{hit.document.title} {hit.document.text}" for step in episode.steps for hit in step.hits)
    return any(cover_match(passage, episode.question.answers) for passage in passages)
