"""Search rewards from gold reasoning: information gain less redundancy of a search, and its query (StepSearch)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from common.answers import f1_score
from common.document_names import id_key, title_key
from envs.interfaces import RewardContext
from envs.types import Document, Episode, Gold

Match = Literal["id", "title"]
_REFERENCE = re.compile(r"#(\d+)")


def coverage_gain(coverage_NG: Tensor) -> Tensor:
    """`[N]`: how much each of N searches raises the best coverage so far, the mean over G gold passages.

    Source: StepSearch, arXiv 2505.15107. Its sum over an episode is at most 1.

    Args:
        coverage_NG: `[N, G]`, at least 0: how well the passages of a search cover each gold passage.
    """
    coverage_NG = torch.as_tensor(coverage_NG, dtype=torch.float32)
    best_NG = torch.cat([torch.zeros_like(coverage_NG[:1]), coverage_NG]).cummax(dim=0).values
    return best_NG.diff(dim=0).mean(dim=1)


def search_gain(
    episodes: Sequence[Episode],
    context: RewardContext,
    *,
    match: Match = "id",
    scale: float = 0.6,
    penalty: float = 1.0,
) -> list[Tensor]:
    """`[S]` for each episode: `scale` * (coverage gain - `penalty` * share of its passages that were found before).

    0 for a step without a search. A search for a question without gold passages is unknown (NaN). It reads the gold
    passages of training questions, so it is a reward and no scorer. Source: StepSearch, arXiv 2505.15107, which covers
    by the cosine of TF-IDF vectors; its released code adds 1.6 times the difference, its text says 0.6.

    Args:
        match: whether gold passages are found by `id` or by `title`.
        penalty: weight of the share of passages that an earlier search found, or this one twice.
    """
    return [_search_gains(episode, match, penalty) * scale for episode in episodes]


def key_queries(episodes: Sequence[Episode], context: RewardContext, *, weight: float = 0.618) -> Tensor:
    """`[B]`: `weight` times the mean over gold sub-questions of the highest F1 of a query with it; NaN without any.

    A reference `#k` in a sub-question stands for the answer of step k. Source: StepSearch, arXiv 2505.15107; in its
    released code each query counts for its best sub-question alone, and the last one wins.
    """
    return weight * torch.tensor([_key_match(episode) for episode in episodes], dtype=torch.float32)


def _search_gains(episode: Episode, match: Match, penalty: float) -> Tensor:
    """`[S]`: gain less penalty of the steps that search."""
    gold = episode.question.gold or Gold()
    wanted = list(dict.fromkeys(map(id_key, gold.documents) if match == "id" else map(title_key, gold.titles)))
    found = [(place, step) for place, step in enumerate(episode.steps) if step.query]
    rewards_S = torch.zeros(len(episode.steps))
    if not found:
        return rewards_S
    names = [[_name(hit.document, match) for hit in step.hits] for _, step in found]
    coverage_NG = torch.tensor([[float(one in own) for one in wanted] for own in names]).reshape(len(found), -1)
    gains_N = coverage_gain(coverage_NG) if wanted else torch.full((len(found),), math.nan)
    seen: set[str] = set()
    for number, (place, step) in enumerate(found):
        again = 0
        for hit in step.hits:
            again += hit.document.id in seen
            seen.add(hit.document.id)
        rewards_S[place] = gains_N[number] - penalty * again / max(len(step.hits), 1)
    return rewards_S


def _name(document: Document, match: Match) -> str:
    return id_key(document.id) if match == "id" else title_key(document.title)


def _key_match(episode: Episode) -> float:
    """The mean over gold sub-questions of the best F1 of a query, as a share of 1."""
    steps = episode.question.gold.steps if episode.question.gold else ()
    queries = [step.query for step in episode.steps if step.query]

    def answer(reference: re.Match[str]) -> str:
        number = int(reference.group(1)) - 1
        return steps[number].answer if 0 <= number < len(steps) else reference.group()

    texts = [_REFERENCE.sub(answer, step.question) for step in steps if step.question]
    best = [max((f1_score(query, text) for query in queries), default=0.0) for text in texts]
    return math.fsum(best) / len(best) if best else math.nan
