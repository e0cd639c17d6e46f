"""Search-R1's staged reward as arithmetic: the answer, then the format, then what was retrieved (arXiv 2505.15117)."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor


def staged(
    correct_B: Tensor,
    well_formed_B: Tensor,
    answered_B: Tensor,
    retrieved_B: Tensor,
    *,
    lambda_f: float = 0.2,
    lambda_r: float = 0.0,
    lambda_a: float = 0.1,
) -> Tensor:
    """`[B]`: a right answer is worth 1, less `lambda_f` if malformed; a wrong one what its format is worth.

    A wrong answer in good form is worth `lambda_f`, and `lambda_r` more if a gold answer was retrieved; a malformed
    episode with any answer `lambda_a`. Source: arXiv 2505.15117 and its released code.

    Args:
        correct_B: `[B]`, float or bool, as the others are; NaN where it is not known, as is then what depends on it.
        well_formed_B: whether the whole episode follows the format.
        answered_B: whether there is an answer at all.
        retrieved_B: whether a gold answer occurs in what was retrieved.

    Returns:
        Of the dtype that the inputs promote to, float32 at least.
    """
    inputs = [torch.as_tensor(values) for values in (correct_B, well_formed_B, answered_B, retrieved_B)]
    dtype = reduce(torch.promote_types, (values.dtype for values in inputs), torch.float32)
    correct_B, well_formed_B, answered_B, retrieved_B = (values.to(dtype) for values in inputs)
    malformed_B = 1 - well_formed_B
    right_B = 1 - lambda_f * malformed_B
    wrong_B = well_formed_B * (lambda_f + lambda_r * retrieved_B) + malformed_B * lambda_a * answered_B
    reward_B = correct_B * right_B + (1 - correct_B) * wrong_B
    return torch.where(correct_B == 1, right_B, reward_B)  # of a right answer nothing but the format has to be known
