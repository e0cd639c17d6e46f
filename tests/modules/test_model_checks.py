"""A model is tried once: the log-probs of a padded batch are those of each row alone, or it is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen3ForCausalLM

from benchmarks.families import tiny_config, tiny_model
from common.errors import ConfigError
from modules.model_checks import require_independent_rows
from tests.tiny import byte_tokenizer, tiny_policy


def model_of(kind: str, **settings: Any) -> Any:
    return tiny_model(tiny_config(kind, settings))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["qwen3", "gemma2", "mixtral", "bloom", "mamba"])
def test_models_of_independent_rows_are_left_as_they_are(kind: str, dtype: torch.dtype) -> None:
    model = model_of(kind).to(dtype).train()
    require_independent_rows(model)
    assert model.training


def test_a_model_that_says_nothing_or_not_a_number_is_none_of_its_business() -> None:
    require_independent_rows(tiny_policy(byte_tokenizer(), scale=0.0).model)
    broken = tiny_policy(byte_tokenizer()).model
    with torch.no_grad():
        broken.lm_head.weight.fill_(float("nan"))  # type: ignore[union-attr]
    require_independent_rows(broken)


def test_an_encoder_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"BertLMHeadModel \(bert\) gives other log-probs .* no causal language model"
    ):
        require_independent_rows(model_of("bert"))
    require_independent_rows(model_of("bert", is_decoder=True))


class Shared(Qwen3ForCausalLM):
    """A model whose rows share the mean of the batch."""

    def forward(self, input_ids: torch.Tensor, **settings: Any) -> Any:  # type: ignore[override]
        states = self.model(input_ids=input_ids, use_cache=False)[0]
        output = super().forward(input_ids, **settings)
        output.logits = self.lm_head(states + states.mean(dim=0, keepdim=True))
        return output


class Failing(Qwen3ForCausalLM):
    """A model that cannot be called without an argument of its own."""

    def forward(self, input_ids: torch.Tensor, **settings: Any) -> Any:  # type: ignore[override]
        return settings["images"]


def test_rows_that_are_not_independent_and_errors_are_refused_in_one_line() -> None:
    config = tiny_config("qwen3", {})
    with pytest.raises(ConfigError, match=r"Shared \(qwen3\) changes its logits"):
        require_independent_rows(Shared(config).eval())
    with pytest.raises(
        ConfigError, match=r"Failing \(qwen3\) cannot .* model \(KeyError: 'images'\): give a model of docs"
    ):
        require_independent_rows(Failing(config).eval())
