"""Check that the model that trains reads the token ids of stored episodes."""

from __future__ import annotations

from typing import Any

from envs.token_ids import require_readable
from envs.types import Episode


def require_model_reads(trainer: Any, episode: Episode, where: str) -> None:
    """Require that the policy of the module that trains reads an episode's ids; a module without a policy may.

    Raises:
        DataError: it does not; `where` names the episode's row.
    """
    policy: Any = getattr(getattr(trainer, "lightning_module", None), "policy", None)
    if hasattr(policy, "tokenizer"):
        require_readable(policy.tokenizer, policy.model.config.get_text_config().vocab_size, episode, where)
