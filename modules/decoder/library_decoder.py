"""The forward pass of any causal language model of transformers for sampling, over the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from common.errors import ConfigError
from modules.decoder.attention_masks import KNOWN, layer_kinds, row_masks
from modules.decoder.fused_linear import Precision
from modules.decoder.kv_cache import Rows
from modules.hidden_states import logits_of_states, read_states
from modules.positions import longest_row

_OTHERWISE = "give a model of docs/models.md, or sample with modules.samplers.vllm.sampler:VLLMSampler"
_ROWS = (3, 13, 6)  # tokens of the rows that a model is checked with


class LibraryDecoder:
    """Reads and continues rows by calling the model itself, with the new tokens of all rows ending at one column.

    Args:
        model: one that `require_decodable` accepts.

    Attributes:
        rows: where keys and values lie, of the shape of what the model itself keeps of a token; empty at first.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        weight = next(model.parameters())
        kept = model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=weight.device), use_cache=True)
        layers = kept.past_key_values.layers
        shapes = {tuple(states.shape[1::2]) for layer in layers for states in (layer.keys, layer.values)}
        if len(shapes) != 1:
            raise ValueError(f"keys and values differ in shape between its layers: {sorted(shapes)}")
        like = torch.empty(0, dtype=Precision.of(weight).stored, device=weight.device)
        self.rows = Rows(len(layers), shapes.pop(), like)

    def reserve(self, slots: int, columns: int, lengths: Sequence[int]) -> None:
        """`Rows.reserve`."""
        self.rows.reserve(slots, columns, lengths)

    def read(self, first: int, new: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """As `FusedDecoder.read`."""
        counts = [len(ids) for ids in new]
        N, device = max(counts), self.model.device
        ids_BN = torch.tensor([[0] * (N - len(ids)) + list(ids) for ids in new])
        width = max(start + count for start, count in zip(starts, counts, strict=True))
        columns_BN = self.rows.aim(first, torch.tensor(starts, device=device), counts, width)
        return self._logits(ids_BN.to(device), columns_BN)

    def step(self, ids_B: Tensor, lengths_B: Tensor, lengths: Sequence[int]) -> Tensor:
        """As `FusedDecoder.step`."""
        columns_B1 = self.rows.aim(0, lengths_B, [1] * len(lengths), max(lengths) + 1)
        return self._logits(ids_B[:, None], columns_B1)

    def _logits(self, ids_BN: Tensor, columns_BN: Tensor) -> Tensor:
        config = self.model.config.get_text_config()
        masks = row_masks(config, columns_BN, self.rows.width)
        if config._attn_implementation == "eager":  # adds its mask to the scores
            masks = {kind: _added(mask, self.rows.dtype) for kind, mask in masks.items()}
        return read_states(
            self.model,
            ids_BN,
            lambda last_B1D: logits_of_states(self.model, last_B1D[:, -1]),
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            position_ids=columns_BN,
            past_key_values=self.rows.cache(),
            use_cache=True,
            logits_to_keep=1,
        )


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, float("-inf"))


@torch.inference_mode()
def require_decodable(model: PreTrainedModel) -> None:
    """Require that `LibraryDecoder` computes what the model does: tried with a few rows of a few tokens.

    Raises:
        ConfigError: it does not.
    """
    kind = f"{type(model).__name__} ({model.config.model_type})"
    if others := [name for name in layer_kinds(model.config.get_text_config()) if name not in KNOWN]:
        raise ConfigError(
            f"{kind} has layers of {', '.join(others)}, which the in-process sampler cannot continue: {_OTHERWISE}"
        )
    training = model.training
    try:
        gap = _gap(model.eval())
    except Exception as error:  # whatever a model does with rows that it was not made for
        reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
        raise ConfigError(
            f"the in-process sampler cannot continue rows of {kind} ({type(error).__name__}: {reason}): {_OTHERWISE}"
        ) from error
    finally:
        model.train(training)
    if gap > (1e-3 if model.dtype == torch.float32 else 0.1):
        raise ConfigError(
            f"{kind} gives other logits (by {gap:.1%} of their deviation) where rows of different lengths share a "
            f"batch: {_OTHERWISE}"
        )


def _gap(model: PreTrainedModel) -> float:
    """Mean difference of logits that are decoded from those of each row alone, as a share of their deviation."""
    decoder, vocabulary = LibraryDecoder(model), len(cast(Tensor, model.get_input_embeddings().weight))
    most, _ = longest_row(model.config) or (max(_ROWS), "")
    counts = [min(count, most) for count in _ROWS]
    new = [[(7 + 11 * token + 5 * row) % vocabulary for token in range(count)] for row, count in enumerate(counts)]
    decoder.rows.reserve(len(new), max(counts), ())
    halves = [count // 2 for count in counts]
    decoder.read(0, [ids[:half] for ids, half in zip(new, halves, strict=True)], [0] * len(new))
    decoder.read(0, [ids[half:-1] for ids, half in zip(new, halves, strict=True)], halves)
    lengths = [count - 1 for count in counts]
    last_B, lengths_B = (torch.tensor(column, device=model.device) for column in ([ids[-1] for ids in new], lengths))
    found = decoder.step(last_B, lengths_B, lengths).float()
    own = torch.stack([model(torch.tensor([ids], device=model.device)).logits[0, -1] for ids in new]).float()
    return float((found - own).abs().mean() / own.std().clamp(min=1e-6))
