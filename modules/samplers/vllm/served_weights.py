"""Proof that the weights which an engine was given are those that sample.

Engines do not say which weights they compute with, only how they were called. So after each update a few fixed prompts
are continued by the engine, and its log-probs are compared with those of a model that has the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from common.errors import EngineError
from common.precision import Dtype
from common.seeds import stable_hash
from modules.policy import embedding_rows
from modules.samplers.vllm.client import Generated, VLLMClient

PROMPT_TOKENS = 8
_EXACT_PROMPTS, _ROUNDED_PROMPTS = 16, 256
# Largest mean difference of a log-prob. Measured with SmolLM2: 6e-6 in float32, 0.04 to 0.05 in bfloat16.
_EXACT, _ROUNDED = 1e-4, 0.2
_SURE = 4  # standard deviations: fresh weights are taken for stale ones once in 30,000 updates

Greedy = Callable[[Sequence[Sequence[int]]], list[Generated]]  # continues token ids by the most probable token


class WeightProof:
    """Compares an engine, after every update, with the weights that it was given.

    Both must agree to rounding: in float32 to a ten-thousandth. A step of training may be smaller. So the engine has to
    follow the weights too: its log-probs must be nearer to those of the new weights than to those of the weights proved
    last, as soon as these two differ by more than rounding; smaller updates are proved with later ones.

    Args:
        dtype: of the engine.
    """

    def __init__(self, dtype: Dtype) -> None:
        self.dtype: Dtype = dtype
        self._proved_PV: Tensor | None = None
        self._version = ""
        self._own: tuple[bool, Tensor]

    def __call__(self, model: Callable[[], PreTrainedModel], greedy: Greedy, version: str = "") -> float:
        """The mean difference of log-probs between the engine and a model, on the fixed prompts.

        Args:
            model: returns one that has the weights, in evaluation mode, on any device.
            greedy: asks the engine.
            version: of the weights, where they have one: the model is read once for each, as it may train by now.

        Raises:
            EngineError: it is larger than rounding explains, or the engine still has earlier weights.
        """
        if not version or version != self._version:
            self._own, self._version = self._read(model()), version
        exact, own_PV = self._own
        said = greedy(_prompts(own_PV.shape[1], exact))
        ids_P, said_P = torch.tensor([one.ids[0] for one in said]), torch.tensor([one.logps[0] for one in said])
        own_P = own_PV.gather(1, ids_P[:, None])[:, 0]
        gap, limit = float((own_P - said_P).abs().mean()), _EXACT if exact else _ROUNDED
        if not gap <= limit:
            reason = f"its log-probs differ by {gap:.3g} a token, more than {limit:g}"
            raise _stale(f"{reason} (or it does not compute in {self.dtype})")
        if self._proved_PV is None:
            self._proved_PV = own_PV
        else:
            self._follow(said_P, own_P, self._proved_PV.gather(1, ids_P[:, None])[:, 0], own_PV)
        return gap

    def _read(self, model: PreTrainedModel) -> tuple[bool, Tensor]:
        """Whether a model can be compared exactly, and its log-probs after the fixed prompts.

        These are computed in float32: rounded, they would change with every update by more than a small one moves them.
        """
        exact = self.dtype == "float32" and all(one.dtype == torch.float32 for one in model.parameters())
        prompts = _prompts(embedding_rows(model), exact)
        with torch.no_grad(), torch.autocast(model.device.type, enabled=False), _in_float32(model):
            logits_PV = model(input_ids=torch.tensor(prompts, device=model.device), logits_to_keep=1).logits[:, -1]
        return exact, logits_PV.float().log_softmax(-1).cpu()

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


@contextmanager
def _in_float32(model: nn.Module) -> Iterator[None]:
    """Compute in float32 with the weights that a model has, of which only those of a layer at work are widened."""
    own: dict[nn.Parameter, Tensor] = {}

    def widen(layer: nn.Module, inputs: object) -> None:
        for weight in layer.parameters(recurse=False):
            own[weight], weight.data = weight.data, weight.data.float()

    def restore(layer: nn.Module, inputs: object, output: object) -> None:
        for weight in layer.parameters(recurse=False):
            weight.data = own.pop(weight)

    with ExitStack() as hooks:
        for layer in model.modules():
            if any(weight.dtype != torch.float32 for weight in layer.parameters(recurse=False)):
                hooks.enter_context(layer.register_forward_pre_hook(widen))
                hooks.enter_context(layer.register_forward_hook(restore, always_call=True))
        yield


def _prompts(vocabulary: int, exact: bool) -> list[tuple[int, ...]]:
    return fixed_prompts(vocabulary, _EXACT_PROMPTS if exact else _ROUNDED_PROMPTS)


def fixed_prompts(vocabulary: int, count: int) -> list[tuple[int, ...]]:
    """Token ids drawn by hash from the whole vocabulary: the same in every run."""
    return [
        tuple(stable_hash("fixed prompt", number, place) % vocabulary for place in range(PROMPT_TOKENS))
        for number in range(count)
    ]


def most_probable(
    client: VLLMClient, version: str, adapter: str | None, prompts: Sequence[Sequence[int]]
) -> list[Generated]:
    """The most probable token after each prompt, some at a time; arguments as of `VLLMClient.generate`."""
    sampling = {"temperature": 0.0, "max_tokens": 1, "ignore_eos": True}
    with ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(client.generate, ids, sampling, weights=version, adapter=adapter) for ids in prompts]
        return [one.result() for one in asked]


def check_log_probs(client: VLLMClient, version: str) -> None:
    """Require log-probs of what was sampled from: among one token, the one kept of all, it has log-prob 0.

    Raises:
        EngineError: the server gives those of the model.
    """
    sampling = {"temperature": 1.0, "top_k": 1, "max_tokens": 1, "ignore_eos": True}
    if any(abs(logp) > 1e-6 for logp in client.generate((0, 1, 2), sampling, weights=version).logps):
        raise EngineError(
            f"vLLM at {client.url} gives log-probs before temperature and top-p: start it with "
            "--logprobs-mode processed_logprobs"
        )


def _stale(reason: str) -> EngineError:
    return EngineError(
        f"the engine does not sample from the policy's weights: on the fixed prompts {reason}; "
        "nothing of it was trained on"
    )
