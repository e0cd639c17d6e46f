"""The forward pass of any causal language model of transformers for sampling, over the same rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from modules.samplers.kv_cache import Rows
from modules.samplers.products import Precision


class LibraryDecoder:
    """Reads and continues rows by calling the model itself, with the new tokens of all rows ending at one column.

    Args:
        model: a causal language model whose layers attend to the whole context.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def rows(self) -> Rows:
        """Empty rows for this model."""
        weight = next(self.model.parameters())
        stored = Precision.of(weight).stored
        return Rows(self.model.config.get_text_config(), torch.empty(0, dtype=stored, device=weight.device))

    def room(self, slots: int, columns: int, limit: int) -> tuple[int, int]:
        """As `FusedDecoder.room`."""
        return slots, columns

    def read(self, rows: Rows, first: int, new: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """As `FusedDecoder.read`."""
        counts = [len(ids) for ids in new]
        N, device = max(counts), self.model.device
        ids_BN = torch.tensor([[0] * (N - len(ids)) + list(ids) for ids in new])
        starts_B = torch.tensor(starts)
        positions_BN = (starts_B - N + torch.tensor(counts))[:, None] + torch.arange(N)
        width = max(start + count for start, count in zip(starts, counts, strict=True))
        mask = rows.aim(first, starts_B.to(device), counts, width)
        return self._logits(rows, ids_BN.to(device), positions_BN.clamp(min=0).to(device), mask)

    def step(self, rows: Rows, ids_B: Tensor, lengths_B: Tensor, lengths: Sequence[int]) -> Tensor:
        """As `FusedDecoder.step`."""
        mask = rows.aim(0, lengths_B, [1] * len(lengths), max(lengths) + 1)
        return self._logits(rows, ids_B[:, None], lengths_B[:, None], mask)

    def _logits(self, rows: Rows, ids_BN: Tensor, positions_BN: Tensor, mask: Tensor) -> Tensor:
        if self.model.config.get_text_config()._attn_implementation == "eager":  # adds its mask to the scores
            mask = torch.zeros_like(mask, dtype=rows.buffer.dtype).masked_fill(~mask, float("-inf"))
        return self.model(
            input_ids=ids_BN, attention_mask=mask, position_ids=positions_BN, past_key_values=rows.cache(),
            logits_to_keep=1,
        ).logits[:, -1]  # fmt: skip
