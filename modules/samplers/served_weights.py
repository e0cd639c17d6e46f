"""A policy's weights on their way to an engine: written whole, and proved to be those that sample.

Engines do not say which weights they compute with, only how they were called. So after each update one fixed prompt is
continued by the engine, and its log-probs are compared with those of the policy itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from common.files import build_once
from common.seeds import stable_hash
from modules.functional.logprobs import token_logprobs
from modules.policy import Dtype, Policy, embedding_rows
from modules.samplers.vllm_client import EngineError, Generated
from modules.sharding import whole

PROMPT_TOKENS, PROOF_TOKENS = 24, 16
# Largest mean difference of a log-prob. Measured with SmolLM2: 6e-6 in float32, 0.04 to 0.05 in bfloat16.
_EXACT, _ROUNDED = 1e-3, 0.2


class Continues(Protocol):
    """Continues token ids greedily, by a number of tokens."""

    def __call__(self, ids: Sequence[int], tokens: int) -> Generated: ...


def write_weights(policy: Policy, folder: Path, dtype: Dtype) -> Path:
    """Write model and tokenizer in the Hugging Face format, adapters merged in float32; atomically, and only once.

    No call in here is collective: where parameters are sharded they have been gathered.
    """
    parameters = {name: one.detach().cpu() for name, one in policy.model.named_parameters(remove_duplicate=False)}
    plain = whole(policy.model, parameters).to(getattr(torch, dtype))
    return build_once(folder, Policy(plain, policy.tokenizer).save)


def prove_weights(policy: Policy, dtype: Dtype, greedy: Continues) -> float:
    """The mean difference of log-probs between an engine and the policy, on one fixed prompt.

    Args:
        policy: the weights that the engine was given.
        dtype: of the engine.
        greedy: asks the engine.

    Raises:
        EngineError: it is larger than rounding explains.
    """
    prompt = fixed_prompt(embedding_rows(policy.model))
    said = greedy(prompt, PROOF_TOKENS)
    gap = float((own_logps(policy, prompt, said.ids) - torch.tensor(said.logps)).abs().mean())
    exact = dtype == "float32" and all(one.dtype == torch.float32 for one in policy.model.parameters())
    limit = _EXACT if exact else _ROUNDED
    if not gap <= limit:
        raise EngineError(
            f"the engine does not sample from the policy's weights: on the fixed prompt its log-probs differ by "
            f"{gap:.3g} a token, more than {limit:g}; nothing of it was trained on"
        )
    return gap


def fixed_prompt(vocabulary: int) -> tuple[int, ...]:
    """Token ids drawn by hash from the whole vocabulary: the same in every run."""
    return tuple(stable_hash("fixed prompt", place) % vocabulary for place in range(PROMPT_TOKENS))


@torch.no_grad()
def own_logps(policy: Policy, prompt: Sequence[int], ids: Sequence[int]) -> Tensor:
    """`[T]`: the policy's own log-probs, at temperature 1, of ids that follow a prompt."""
    device = policy.model.device
    both_1N = torch.tensor([[*prompt, *ids]], device=device)
    with torch.autocast(device.type, enabled=False):
        logits = policy.model(input_ids=both_1N, logits_to_keep=len(ids) + 1).logits[:, :-1]
    return token_logprobs(logits, both_1N[:, len(prompt) :])[0].float().cpu()
