"""Log-probabilities and entropies straight from hidden states: the logits of a whole batch never exist.

The vocabulary of a language model is large: the logits of 4,096 tokens over 151,936 entries take 2.5 GB in float32, and
a softmax with its gradient several times that. Here a few tokens at a time are multiplied by the output weight, reduced
to two numbers each, and dropped; the backward pass computes their logits again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from common.precision import has_fast_bfloat16

# Logits computed at once: at least so many, since many small products are slow, and at most so many, for memory.
_LEAST, _MOST = 2**20, 2**27
_TOKENS, _ENOUGH = 256, 2**23  # those of so many tokens, if no more than this: a product reads the whole output layer
_CHUNKS = 16  # between the two, this share of the tokens: two float32 buffers are then 1/8 of the whole logits


def linear_logprobs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    ids_N: Tensor,
    temperature: float = 1.0,
    *,
    scale: float = 1.0,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`token_logprobs` and `token_entropy` of the logits `hidden_ND @ weight_VD.T`.

    The factors are of the type of autocast where it is on; the product is `float32_product`, and all else float32.

    Args:
        hidden_ND: `[N, D]`, the hidden states that predict the ids.
        weight_VD: `[V, D]`, the weight of the output layer, which has no bias.
        ids_N: `[N]` integer.
        temperature: > 0; the logits are divided by it.
        scale, cap: what is made of the logits before that, as in `changed_logits`.

    Returns:
        Log-probability of each id and entropy in nats of the distribution that it comes from, `[N]` float32 each;
        gradients of both flow to the first two arguments.
    """
    if hidden_ND.shape[:1] != ids_N.shape:
        raise ValueError(f"hidden states {tuple(hidden_ND.shape)} do not predict ids {tuple(ids_N.shape)}")
    kind = hidden_ND.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        hidden_ND, weight_VD = hidden_ND.to(dtype), weight_VD.to(dtype)
    with torch.autocast(kind, enabled=False):
        return _LinearLogprobs.apply(hidden_ND, weight_VD, ids_N, temperature, scale, cap)  # pyright: ignore


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        ids_N: Tensor,
        temperature: float,
        scale: float,
        cap: float | None,
    ) -> tuple[Tensor, Tensor]:
        logps_N, entropy_N, total_N = (hidden_ND.new_empty(len(ids_N), dtype=torch.float32) for _ in range(3))
        for part in _chunks(len(ids_N), len(weight_VD)):
            numbers = _reduced(_logits(hidden_ND[part], weight_VD, temperature, scale, cap), ids_N[part])
            logps_N[part], entropy_N[part], total_N[part] = numbers
        ctx.save_for_backward(hidden_ND, weight_VD, ids_N, total_N, entropy_N)
        ctx.settings = temperature, scale, cap
        ctx.set_materialize_grads(False)
        return logps_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        hidden_ND, weight_VD, ids_N, total_N, entropy_N = ctx.saved_tensors
        temperature, scale, cap = ctx.settings
        of_logps_N, of_entropy_N = gradients
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        hidden_grad_ND = torch.zeros_like(hidden_ND) if needs_hidden else None
        # in float32, for a chunk's share is soon too small for a sum in bfloat16
        weight_grad_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if needs_weight else None
        if of_logps_N is None:
            of_logps_N = torch.zeros_like(total_N)
        for part in _chunks(len(ids_N), len(weight_VD)):
            logits_CV = _logits(hidden_ND[part], weight_VD, temperature, scale, cap)
            slope_CV = None if cap is None else 1 - (logits_CV * (temperature / cap)).square_()  # of the cap
            logps_CV = logits_CV.sub_(total_N[part, None])
            of_entropy_C = None if of_entropy_N is None else of_entropy_N[part]
            grad_CV = _gradient(logps_CV, ids_N[part], of_logps_N[part], of_entropy_C, entropy_N[part])
            del logits_CV, logps_CV
            if slope_CV is not None:
                grad_CV.mul_(slope_CV)
                del slope_CV
            grad_CV = grad_CV.div_(temperature / scale).to(weight_VD.dtype)
            if hidden_grad_ND is not None:
                torch.mm(grad_CV, weight_VD, out=hidden_grad_ND[part])
            if weight_grad_VD is not None:
                if weight_VD.dtype == torch.float32:
                    weight_grad_VD.addmm_(grad_CV.T, hidden_ND[part])
                else:
                    weight_grad_VD += grad_CV.T @ hidden_ND[part]
            del grad_CV  # before the next logits are computed
        weight_grad = None if weight_grad_VD is None else weight_grad_VD.to(weight_VD.dtype)
        return hidden_grad_ND, weight_grad, None, None, None, None


def _reduced(logits_CV: Tensor, ids_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of the ids, entropies and log Σ exp(logits), `[C]` each; the logits are overwritten."""
    largest_C1 = logits_CV.amax(dim=-1, keepdim=True)
    logits_CV -= largest_C1
    chances_CV = logits_CV.exp()
    sums_C = chances_CV.sum(dim=-1)
    logps_C = logits_CV.gather(-1, ids_C[:, None]).squeeze(-1) - sums_C.log()
    entropy_C = sums_C.log() - chances_CV.mul_(logits_CV).sum(dim=-1) / sums_C  # log Σ e^x − Σ x e^x / Σ e^x
    return logps_C, entropy_C, sums_C.log() + largest_C1.squeeze(-1)


def _gradient(
    logps_CV: Tensor, ids_C: Tensor, of_logps_C: Tensor, of_entropy_C: Tensor | None, entropy_C: Tensor
) -> Tensor:
    """`[C, V]`, the gradient of the logits given those of the results; the log-probs `logps_CV` are overwritten.

    With p the distribution and H its entropy, d log p(i) = onehot(i) − p and d H = −p (log p + H).
    """
    if of_entropy_C is None:
        grad_CV = logps_CV.exp_().mul_(-of_logps_C[:, None])
    else:
        chances_CV = logps_CV.exp()
        grad_CV = logps_CV.add_(entropy_C[:, None]).mul_(of_entropy_C[:, None]).add_(of_logps_C[:, None])
        grad_CV.mul_(chances_CV).neg_()
    return grad_CV.scatter_add_(-1, ids_C[:, None], of_logps_C[:, None])


def _logits(hidden_CD: Tensor, weight_VD: Tensor, temperature: float, scale: float, cap: float | None) -> Tensor:
    """`[C, V]` float32, of its own."""
    logits_CV = float32_product(hidden_CD, weight_VD.T)
    if cap is None:
        return logits_CV.div_(temperature / scale)
    return logits_CV.mul_(scale / cap).tanh_().mul_(cap / temperature)


def float32_product(left_ND: Tensor, right_DV: Tensor) -> Tensor:
    """`left @ right`, `[N, V]` float32, not rounded to the type of shorter factors.

    Rounded to bfloat16 a logit of 20 is off by up to 0.06, and with it a log-probability. A CPU that multiplies
    bfloat16 numbers fast rounds all the same.
    """
    if left_ND.is_cuda and left_ND.dtype != torch.float32:
        return torch.mm(left_ND, right_DV, out_dtype=torch.float32)
    if has_fast_bfloat16(left_ND.device):
        return (left_ND @ right_DV).float()
    return left_ND.float() @ right_DV.float()


def _chunks(tokens: int, entries: int) -> Iterator[slice]:
    """The tokens whose logits over a vocabulary of so many entries are computed at once."""
    least = max(1, _LEAST // entries, min(_TOKENS, _ENOUGH // entries))
    size = max(least, min(-(-tokens // _CHUNKS), _MOST // entries))
    return (slice(start, start + size) for start in range(0, tokens, size))
