"""Token ids of episodes: the fingerprint of the tokenizer that made them, and the check that a reader has the same."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from common.errors import DataError
from envs.types import Episode

_PROBE = (
    "The quick brown fox jumps over the lazy dog; Zoë's naïve “ABC” costs 1,234.5 €  (or 67%)!\n\tdef f(x): return x_1"
)


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """The same for two tokenizers that give every token the same id and spell a text with the same ones.

    How they are saved, their chat templates and what they add around a text do not count.
    """
    return _fingerprint(tokenizer, len(tokenizer))


@lru_cache(maxsize=32)
def _fingerprint(tokenizer: PreTrainedTokenizerBase, size: int) -> str:
    """`size` is in the key: a tokenizer that gained tokens is another."""
    vocabulary = sorted((number, token) for token, number in tokenizer.get_vocab().items())
    probe = tokenizer(_PROBE, add_special_tokens=False).input_ids
    return hashlib.sha256(json.dumps([vocabulary, probe]).encode()).hexdigest()[:16]


def require_ids_of(tokenizer: PreTrainedTokenizerBase, made_by: str, where: str) -> None:
    """Require that token ids mean the same to a tokenizer as to the one that made them; empty where that is unknown.

    Raises:
        DataError: they do not; `where` says whose they are.
    """
    if made_by and made_by != fingerprint(tokenizer):
        raise DataError(
            f"{where}: its token ids are those of another tokenizer than {tokenizer.name_or_path or '(no name)'}: make "
            "the data again with this model's tokenizer, or give the model that it was made for"
        )


def require_readable(tokenizer: PreTrainedTokenizerBase, rows: int, episode: Episode, where: str) -> None:
    """Require an episode whose token ids a model with this tokenizer and so many rows of its table reads.

    Raises:
        DataError: it does not.
    """
    require_ids_of(tokenizer, episode.tokenizer, where)
    ids = [*episode.prompt_ids, *(token for turn in episode.turns for token in turn.ids())]
    if ids and not 0 <= min(ids) <= max(ids) < rows:
        strange = min(ids) if min(ids) < 0 else max(ids)
        raise DataError(f"{where}: token id {strange} is none of the model's, which are 0 to {rows - 1}")
