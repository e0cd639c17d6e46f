"""Positions of a model: how long a row may be so that its positions depend on nothing but the row."""

from __future__ import annotations

from transformers import PretrainedConfig

from common.errors import ConfigError


def longest_row(config: PretrainedConfig) -> tuple[int, str] | None:
    """Tokens that a row may have, and what limits them; None where nothing does.

    The frequencies of dynamic and LongRoPE rotary positions change for a whole batch once its longest row passes the
    original context, and for keys and values that are kept they do not change at all. Learned positions end with their
    table.
    """
    text = config.get_text_config()
    ropes, longest = getattr(text, "rope_parameters", None), getattr(text, "max_position_embeddings", None)
    if not ropes:
        return (longest, "no positions") if longest and longest > 0 else None
    for rope in (ropes, *(rope for rope in ropes.values() if isinstance(rope, dict))):
        if rope.get("rope_type") == "longrope":
            return rope["original_max_position_embeddings"], "LongRoPE positions, which follow the longest row"
        if "dynamic" in (rope.get("rope_type") or "") and longest:
            return longest, "dynamic rotary positions, which follow the longest row"
    return None


def require_row_fits(config: PretrainedConfig, tokens: int) -> None:
    """Require that a model can read a row of so many tokens.

    Raises:
        ConfigError: it cannot.
    """
    limit = longest_row(config)
    if limit is not None and tokens > limit[0]:
        raise ConfigError(
            f"a row of {tokens} tokens is too long for {config.model_type}: it has {limit[1]} beyond {limit[0]} "
            f"tokens; give rows of {limit[0]} at most"
        )
