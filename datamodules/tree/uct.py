"""The arithmetic of UCT: scores of children by their values and by how seldom they were visited."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def uct_scores(
    value_K: Tensor | Sequence[float], visits_K: Tensor | Sequence[float], visits: float, *, exploration: float = 1.414
) -> Tensor:
    """Q + c · sqrt(ln N_parent / N), `[K]` float64, of K siblings; infinite for one that was never visited.

    Source: Kocsis and Szepesvári 2006, with the constant of ReasonRAG (arXiv 2505.14069).

    Args:
        value_K: mean backed-up value of each child.
        visits_K: visits of each child (N).
        visits: of their parent, its own valuation and dead children among them.
        exploration: weight of exploration (c).
    """
    value_K, visits_K = (torch.as_tensor(x, dtype=torch.float64) for x in (value_K, visits_K))
    scores_K = value_K + exploration * (math.log(max(visits, 1.0)) / visits_K.clamp(min=1.0)).sqrt()
    return scores_K.masked_fill(visits_K == 0, torch.inf)
