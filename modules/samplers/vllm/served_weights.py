"""A policy's weights on their way to an engine: written whole, and proved to be those that sample.

Engines do not say which weights they compute with, only how they were called. So after each update a few fixed prompts
are continued by the engine, and its log-probs are compared with those of the weights that were written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers.utils import logging

from common.errors import EngineError
from common.files import build_once
from common.seeds import stable_hash
from modules.policy import Dtype, Policy, embedding_rows, load_policy
from modules.samplers.vllm.client import Generated
from modules.sharding import whole

PROMPT_TOKENS = 8
_EXACT_PROMPTS, _ROUNDED_PROMPTS = 16, 256
# Largest mean difference of a log-prob. Measured with SmolLM2: 6e-6 in float32, 0.04 to 0.05 in bfloat16.
_EXACT, _ROUNDED = 1e-4, 0.2
_SURE = 4  # standard deviations: fresh weights are taken for stale ones once in 30,000 updates

Greedy = Callable[[Sequence[Sequence[int]]], list[Generated]]  # continues token ids by the most probable token


def write_weights(policy: Policy, folder: Path, dtype: Dtype) -> Path:
    """Write model and tokenizer in the Hugging Face format, adapters merged in float32; atomically, and only once.

    Every rank writes for its own server, which may have a disk of its own.
    No call in here is collective: where parameters are sharded they have been gathered.
    """
    parameters = {name: one.detach().cpu() for name, one in policy.model.named_parameters(remove_duplicate=False)}
    plain = whole(policy.model, parameters).to(getattr(torch, dtype))
    plain.should_save_on_this_rank = lambda is_main_process: True  # transformers writes on rank 0 alone
    return build_once(folder, Policy(plain, policy.tokenizer).save)


class WeightProof:
    """Compares an engine, after every update, with the weights that were written for it.

    Both must agree to rounding: in float32 to a ten-thousandth. A step of training may be smaller. So the engine has to
    follow the weights too: its log-probs must be nearer to those of the new weights than to those of the weights proved
    last, as soon as these two differ by more than rounding; smaller updates are proved with later ones.

    Args:
        dtype: of the engine.
    """

    def __init__(self, dtype: Dtype) -> None:
        self.dtype: Dtype = dtype
        self.exact = dtype == "float32"
        self._proved_PV: Tensor | None = None

    def __call__(self, folder: Path, greedy: Greedy) -> float:
        """The mean difference of log-probs between the engine and the weights in `folder`, on the fixed prompts.

        Raises:
            EngineError: it is larger than rounding explains, or the engine still has earlier weights.
        """
        logging.disable_progress_bar()  # of loading a model, in every iteration
        model = load_policy(str(folder), dtype=self.dtype, device="cpu").model
        prompts = fixed_prompts(embedding_rows(model), _EXACT_PROMPTS if self.exact else _ROUNDED_PROMPTS)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            logits_PV = model(input_ids=torch.tensor(prompts), logits_to_keep=1).logits[:, -1]
        own_PV = logits_PV.float().log_softmax(-1)
        said = greedy(prompts)
        ids_P, said_P = torch.tensor([one.ids[0] for one in said]), torch.tensor([one.logps[0] for one in said])
        own_P = own_PV.gather(1, ids_P[:, None])[:, 0]
        gap, limit = float((own_P - said_P).abs().mean()), _EXACT if self.exact else _ROUNDED
        if not gap <= limit:
            reason = f"its log-probs differ by {gap:.3g} a token, more than {limit:g}"
            raise _stale(f"{reason} (or it does not compute in {self.dtype})")
        if self._proved_PV is None:
            self._proved_PV = own_PV
        else:
            self._follow(said_P, own_P, self._proved_PV.gather(1, ids_P[:, None])[:, 0], own_PV)
        return gap

    def _follow(self, said_P: Tensor, new_P: Tensor, old_P: Tensor, own_PV: Tensor) -> None:
        """Tell the new weights from those proved last, where they are far enough from each other."""
        moved, from_new, from_old = (float(gap_P.norm()) for gap_P in (new_P - old_P, said_P - new_P, said_P - old_P))
        # Noise of either sign in every log-prob moves the engine along the way from old to new by one such deviation.
        deviation = min(from_new, from_old) / len(said_P) ** 0.5
        if moved / 2 <= _SURE * deviation:
            return
        if from_old < from_new:
            raise _stale("its log-probs are nearer to those of earlier weights")
        self._proved_PV = own_PV


def fixed_prompts(vocabulary: int, count: int) -> list[tuple[int, ...]]:
    """Token ids drawn by hash from the whole vocabulary: the same in every run."""
    return [
        tuple(stable_hash("fixed prompt", number, place) % vocabulary for place in range(PROMPT_TOKENS))
        for number in range(count)
    ]


def _stale(reason: str) -> EngineError:
    return EngineError(
        f"the engine does not sample from the policy's weights: on the fixed prompts {reason}; "
        "nothing of it was trained on"
    )
