"""HiPRAG's reward as arithmetic: R = A·(1 - λ_f) + λ_f·F + λ_p·A·F·N_corr/N. Source: arXiv 2510.07794."""

from __future__ import annotations

import torch
from torch import Tensor


def hierarchical(
    correct_B: Tensor,
    well_formed_B: Tensor,
    good_steps_B: Tensor,
    steps_B: Tensor,
    *,
    lambda_f: float = 0.2,
    lambda_p: float = 0.4,
) -> Tensor:
    """`[B]`, float32 or the inputs' float64: A·(1 - λ_f) + λ_f·F + λ_p·A·F·good/steps; no bonus without steps.

    Args:
        correct_B: A, float or bool.
        well_formed_B: F, float or bool.
        good_steps_B: steps that searched as they should.
        steps_B: all steps.
    """
    columns = [torch.as_tensor(column) for column in (correct_B, well_formed_B, good_steps_B, steps_B)]
    dtype = torch.float64 if any(column.dtype == torch.float64 for column in columns) else torch.float32
    correct_B, well_formed_B, good_B, steps_B = (column.to(dtype) for column in columns)
    earns_B = correct_B * well_formed_B
    share_B = torch.where((steps_B > 0) & (earns_B != 0), good_B / steps_B.clamp(min=1), torch.zeros_like(steps_B))
    return correct_B * (1 - lambda_f) + lambda_f * well_formed_B + lambda_p * earns_B * share_B
