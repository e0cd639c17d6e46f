"""How long a row may be: LongRoPE and dynamic positions follow the longest row of a batch, tables end."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import GPT2Config, LlamaConfig, Phi3Config, PretrainedConfig, Qwen3Config, XLNetConfig

from common.errors import ConfigError
from modules.positions import longest_row, require_row_fits

LONGROPE: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 48, "long_factor": [4.0] * 48,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
LINEAR = DYNAMIC | {"rope_type": "linear"}


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        (Phi3Config(rope_parameters=LONGROPE, max_position_embeddings=131072), 4096),
        (LlamaConfig(rope_parameters=DYNAMIC, max_position_embeddings=2048), 2048),
        (LlamaConfig(rope_parameters=LINEAR, max_position_embeddings=2048), None),
        (Qwen3Config(), None),
        (GPT2Config(), 1024),
        (XLNetConfig(), None),
    ],
)
def test_the_longest_row(config: PretrainedConfig, tokens: int | None) -> None:
    found = longest_row(config)
    assert (found and found[0]) == tokens
    require_row_fits(config, tokens or 10**6)
    if tokens:
        with pytest.raises(
            ConfigError, match=f"a row of {tokens + 1} tokens is too long for {config.model_type}: it has"
        ):
            require_row_fits(config, tokens + 1)


def test_positions_that_differ_by_kind_of_layer() -> None:
    config = LlamaConfig(max_position_embeddings=2048)
    config.rope_parameters = {"full_attention": DYNAMIC, "sliding_attention": LINEAR}
    assert longest_row(config) == (2048, "dynamic rotary positions, which follow the longest row")
