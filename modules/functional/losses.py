"""The losses of ProRAG and its neighbours, as plain functions of log-probabilities and scores."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Aggregate = Literal["token_mean", "sequence_mean", "group_sum"]


def format_weighted_nll(
    logps_BT: Tensor,
    mask_BT: Tensor,
    is_control_BT: Tensor,
    *,
    control_weight: float | Tensor,
    reduction: Literal["weighted_mean", "sum"] = "weighted_mean",
) -> Tensor:
    """Negative log-likelihood in which control tokens (the format's tags) count `control_weight` times.

    Source: ProRAG Eq 1; its code divides by the sum of the weights (`weighted_mean`), its paper does not (`sum`).

    Args:
        logps_BT: `[B, T]` log-probabilities of the targets.
        mask_BT: `[B, T]`, true where a token is trained.
        is_control_BT: `[B, T]`, true on control tokens.
        control_weight: one weight, or `[B, T]` with one a position, read on control tokens.

    Returns:
        A scalar; 0 where nothing is trained.
    """
    weights_BT = token_weights(mask_BT, is_control_BT, control_weight).to(logps_BT.dtype)
    total = -(weights_BT * logps_BT.masked_fill(weights_BT == 0, 0.0)).sum()
    return total if reduction == "sum" else total / weights_BT.sum().clamp(min=1e-8)


def token_weights(mask_BT: Tensor, is_control_BT: Tensor, control_weight: float | Tensor) -> Tensor:
    """`[B, T]` float32: 0 where nothing is trained, `control_weight` on control tokens, 1 elsewhere."""
    weight = torch.as_tensor(control_weight, dtype=torch.float32, device=mask_BT.device)
    unit = torch.ones((), device=mask_BT.device)
    return torch.where(is_control_BT.bool(), weight, unit) * mask_BT.float()


def pairwise_ranking_loss(chosen_N: Tensor, rejected_N: Tensor) -> Tensor:
    """Mean of -log sigmoid(chosen - rejected) over N pairs of scores. Source: ProRAG Eq 4 (Bradley-Terry)."""
    return -F.logsigmoid(chosen_N - rejected_N).mean()


def clipped_policy_loss(
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    aggregate: Aggregate = "token_mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """The negative clipped surrogate min(rho A, clip(rho, 1 - low, 1 + high) A), rho the ratio of new to old policy.

    Source: ProRAG Eq 9; `clip_high` above `clip_low` is DAPO's (arXiv 2503.14476).

    Args:
        logps_BT: `[B, T]` log-probabilities under the policy that is trained.
        old_logps_BT: `[B, T]` under the policy that sampled, no gradient.
        advantages_BT: `[B, T]`.
        mask_BT: `[B, T]`, true on trained tokens; nothing else is looked at, not even a NaN.
        aggregate: `token_mean` divides the sum by the tokens, `sequence_mean` is the mean over rows of their means,
            `group_sum` divides the sum by the rows (Eq 9 as written).
        denominator: what to divide by in place of the local count of tokens or rows.

    Returns:
        A scalar; 0 where nothing is trained.
    """
    mask_BT = mask_BT.bool()
    ratio_BT = (logps_BT - old_logps_BT).masked_fill(~mask_BT, 0.0).exp()
    advantages_BT = advantages_BT.masked_fill(~mask_BT, 0.0)
    clipped_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high) * advantages_BT
    return _aggregated(-torch.minimum(ratio_BT * advantages_BT, clipped_BT), mask_BT, aggregate, denominator)


def likelihood_guard(
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    segments_BT: Tensor,
    *,
    aggregate: Aggregate = "token_mean",
    denominator: float | Tensor | None = None,
) -> Tensor:
    """What good actions have lost in likelihood: mean over trained tokens of max(0, old - new log-prob).

    It counts on tokens whose advantage is not negative, in segments whose log-prob fell in sum; 0 on all others.
    Source: LLDS, arXiv 2512.04220, without its weight.

    Args:
        logps_BT: `[B, T]` log-probabilities under the policy that is trained.
        old_logps_BT: `[B, T]` under the policy that sampled, no gradient.
        advantages_BT: `[B, T]`.
        mask_BT: `[B, T]`, true on trained tokens; nothing else is looked at, not even a NaN.
        segments_BT: `[B, T]` whole numbers, the same for the tokens of one segment of a row, such as a step.
        aggregate: as in `clipped_policy_loss`.
        denominator: as in `clipped_policy_loss`.

    Returns:
        A scalar; 0 where nothing is trained.
    """
    mask_BT = mask_BT.bool()
    lost_BT = (old_logps_BT - logps_BT).masked_fill(~mask_BT, 0.0)
    places_BT = (segments_BT - segments_BT.min()).long()
    sums_BN = lost_BT.new_zeros(len(lost_BT), int(places_BT.max()) + 1).scatter_add(1, places_BT, lost_BT.detach())
    guarded_BT = (advantages_BT >= 0) & (sums_BN.gather(1, places_BT) > 0)
    return _aggregated(lost_BT.clamp(min=0).masked_fill(~guarded_BT, 0.0), mask_BT, aggregate, denominator)


def sequence_policy_loss(
    logps_BT: Tensor,
    old_logps_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    denominator: float | Tensor | None = None,
) -> Tensor:
    """The negative clipped surrogate with one ratio and one advantage a sequence.

    -mean over rows of min(rho A, clip(rho, 1 - low, 1 + high) A), rho = exp(mean over the mask of new - old).
    Source: GSPO, arXiv 2507.18071, Eqs 5 and 7.

    Args:
        logps_BT: `[B, T]` log-probabilities under the policy that is trained.
        old_logps_BT: `[B, T]` under the policy that sampled, no gradient.
        advantages_B: `[B]`.
        mask_BT: `[B, T]`, true on trained tokens; nothing else is looked at, not even a NaN.
        denominator: what to divide by in place of the number of rows with a trained token.

    Returns:
        A scalar; 0 where nothing is trained.
    """
    return clipped_policy_loss(
        with_sequence_ratio(logps_BT, old_logps_BT, mask_BT),
        old_logps_BT,
        advantages_B[:, None].expand_as(logps_BT),
        mask_BT,
        clip_low=clip_low,
        clip_high=clip_high,
        aggregate="sequence_mean",
        denominator=denominator,
    )


def with_sequence_ratio(logps_BT: Tensor, old_logps_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Log-probabilities whose ratio to the old ones is the same for all tokens of a row: their geometric mean.

    The gradient is each token's own. So a loss over them, with aggregate `sequence_mean`, is GSPO's where the
    advantages of a row are equal, and GSPO-token's where they are not (arXiv 2507.18071, Eqs 13 and 14).

    Args:
        logps_BT: `[B, T]` log-probabilities under the policy that is trained.
        old_logps_BT: `[B, T]` under the policy that sampled, no gradient.
        mask_BT: `[B, T]`, true on trained tokens; what comes back elsewhere means nothing.
    """
    mask_BT = mask_BT.bool()
    gaps_BT = (logps_BT.detach() - old_logps_BT).masked_fill(~mask_BT, 0.0)
    mean_B1 = gaps_BT.sum(dim=1, keepdim=True) / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return old_logps_BT + mean_B1 + (logps_BT - logps_BT.detach())


def truncated_weights(logps_BT: Tensor, sampled_logps_BT: Tensor, mask_BT: Tensor, *, cap: float) -> Tensor:
    """`[B, T]`: min(ratio of the policy before the update to the sampler, cap); outside the mask it means nothing.

    A weight is never negative, so as a factor of the advantage it is one of the clipped surrogate. Source: TIS, Yao et
    al. 2025, "Your efficient RL framework secretly brings you off-policy RL training".

    Args:
        logps_BT: `[B, T]` log-probabilities under the policy before the update, as the trainer computes them.
        sampled_logps_BT: `[B, T]` as the sampler gave them.
        mask_BT: `[B, T]`, true on trained tokens; nothing else is looked at.
    """
    return (logps_BT - sampled_logps_BT).masked_fill(~mask_BT.bool(), 0.0).exp().clamp(max=cap)


def clipped_tokens(
    logps_BT: Tensor, old_logps_BT: Tensor, advantages_BT: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Where `clipped_policy_loss` has no gradient: two bool tensors of the inputs' shape.

    Returns:
        Clipped from below: rho < 1 - `clip_low` with a negative advantage. Clipped from above: rho > 1 + `clip_high`
        with a positive one.
    """
    ratio_BT = (logps_BT - old_logps_BT).exp()
    low_BT = (ratio_BT < 1 - clip_low) & (advantages_BT < 0)
    high_BT = (ratio_BT > 1 + clip_high) & (advantages_BT > 0)
    return low_BT, high_BT


def clipped_value_loss(
    values_BT: Tensor,
    old_values_BT: Tensor,
    returns_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip: float,
    denominator: float | Tensor | None = None,
) -> Tensor:
    """Half the squared error of a critic, pessimistic where its value has moved further than `clip`.

    Mean over the mask of max((v - R)^2, (clip(v, old - c, old + c) - R)^2) / 2: a value that has moved far enough
    towards its return has no gradient. Source: PPO's released code (baselines, ppo2).

    Args:
        values_BT: `[B, T]` values under the critic that is trained.
        old_values_BT: `[B, T]` under the critic of the rollout, no gradient.
        returns_BT: `[B, T]`.
        mask_BT: `[B, T]`, true on trained tokens; nothing else is looked at, not even a NaN.
        denominator: what to divide by in place of the number of trained tokens.

    Returns:
        A scalar; 0 where nothing is trained.
    """
    mask_BT = mask_BT.bool()
    values_BT, old_values_BT, returns_BT = (
        tensor.masked_fill(~mask_BT, 0.0) for tensor in (values_BT, old_values_BT, returns_BT)
    )
    free_BT, clipped_BT = _value_errors(values_BT, old_values_BT, returns_BT, clip)
    total = torch.maximum(free_BT, clipped_BT).sum() / 2
    denominator = mask_BT.sum() if denominator is None else denominator
    return total / torch.as_tensor(denominator, device=total.device).clamp(min=1e-8)


def clipped_values(values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, *, clip: float) -> Tensor:
    """Where `clipped_value_loss` has no gradient, bool of the inputs' shape: the clipped error is the larger one."""
    free_BT, clipped_BT = _value_errors(values_BT, old_values_BT, returns_BT, clip)
    return clipped_BT > free_BT


def _value_errors(values_BT: Tensor, old_BT: Tensor, returns_BT: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Squared errors of the values, and of the values held within `clip` of the old ones."""
    held_BT = torch.clamp(values_BT, old_BT - clip, old_BT + clip)
    return (values_BT - returns_BT) ** 2, (held_BT - returns_BT) ** 2


def _aggregated(terms_BT: Tensor, mask_BT: Tensor, aggregate: Aggregate, denominator: float | Tensor | None) -> Tensor:
    """The mean of an aggregate; by a `denominator` in place of the local count where it is given."""
    if denominator is None:
        denominator = mask_BT.sum() if aggregate == "token_mean" else mask_BT.any(dim=1).sum()
    total = masked_total(terms_BT, mask_BT, aggregate)
    return total / torch.as_tensor(denominator, device=total.device).clamp(min=1e-8)


def masked_total(terms_BT: Tensor, mask_BT: Tensor, aggregate: Aggregate) -> Tensor:
    """The numerator of an aggregate: the sum over trained tokens, for `sequence_mean` the sum of the rows' means."""
    mask_BT = mask_BT.bool()
    terms_BT = terms_BT.masked_fill(~mask_BT, 0.0)
    if aggregate == "sequence_mean":
        terms_BT = terms_BT / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return terms_BT.sum()


def dpo_loss(
    policy_chosen_N: Tensor,
    policy_rejected_N: Tensor,
    reference_chosen_N: Tensor,
    reference_rejected_N: Tensor,
    *,
    beta: float,
) -> Tensor:
    """Direct preference optimisation over N pairs of summed log-probabilities. Source: Rafailov et al. 2023, Eq 7."""
    margin_N = (policy_chosen_N - reference_chosen_N) - (policy_rejected_N - reference_rejected_N)
    return -F.logsigmoid(beta * margin_N).mean()


def k3_divergence(logps_BT: Tensor, reference_logps_BT: Tensor) -> Tensor:
    """`[B, T]`: the estimate exp(d) - 1 - d, d = reference - policy, of the KL from reference, never negative.

    Unbiased under the policy, with a low variance. Source: Schulman, "Approximating KL Divergence" (2020), k3.
    """
    difference_BT = reference_logps_BT - logps_BT
    return difference_BT.exp() - 1 - difference_BT
