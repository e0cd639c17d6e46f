"""Token ids of episodes: the fingerprint of the tokenizer that made them, and the check that a reader has the same."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from common.errors import ConfigError, DataError
from envs.types import Episode, Turn

_PROBE = "The quick brown fox jumps over the lazy dog; Zoë's naïve “ABC” costs 1,234.5 €  (or 67%)!\n\tdef f(x): x_1"

_EXTENDS = "extends"  # in a tokenizer's own settings: fingerprints of those that it was before it gained tokens


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


def extend(tokenizer: PreTrainedTokenizerBase) -> None:
    """Note in a tokenizer that is about to gain tokens what it is now: it will still read these ids."""
    tokenizer.init_kwargs[_EXTENDS] = [*tokenizer.init_kwargs.get(_EXTENDS, ()), fingerprint(tokenizer)]


def require_same(own: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, whose: str) -> None:
    """Require that a model reads the ids of another's tokenizer; `whose` names the two.

    Raises:
        ConfigError: it does not.
    """
    if fingerprint(own) != fingerprint(other):
        names = f"{own.name_or_path} and {other.name_or_path}"
        raise ConfigError(f"{whose} have different tokenizers ({names}), and one reads the other's ids: give the same")


def require_ids_of(tokenizer: PreTrainedTokenizerBase, made_by: str, where: str) -> None:
    """Require that token ids mean the same to a tokenizer as to the one that made them; `where` says whose they are.

    Args:
        made_by: its fingerprint; empty where it is unknown, as of a record of an earlier version. It may be one that
            the tokenizer extends (`extend`).

    Raises:
        DataError: they do not.
    """
    if made_by and made_by not in (fingerprint(tokenizer), *tokenizer.init_kwargs.get(_EXTENDS, ())):
        raise _other(tokenizer, where)


def require_readable(tokenizer: PreTrainedTokenizerBase, rows: int, episode: Episode, where: str) -> None:
    """Require an episode whose token ids a model with this tokenizer and so many rows of its table reads.

    One without a fingerprint is judged by its turns: their sampled ids must be their text.

    Raises:
        DataError: the model does not read it.
    """
    require_ids_of(tokenizer, episode.tokenizer, where)
    ids = [*episode.prompt_ids, *(token for turn in episode.turns for token in turn.ids())]
    if ids and not 0 <= min(ids) <= max(ids) < rows:
        strange = min(ids) if min(ids) < 0 else max(ids)
        raise DataError(f"{where}: token id {strange} is none of the model's, which are 0 to {rows - 1}")
    if not episode.tokenizer and not all(_spelt(tokenizer, turn) for turn in episode.turns):
        raise _other(tokenizer, where)


def _other(tokenizer: PreTrainedTokenizerBase, where: str) -> DataError:
    return DataError(
        f"{where}: its token ids are those of another tokenizer than {tokenizer.name_or_path or '(no name)'}: make the "
        "data again with this model's tokenizer, or give the model that it was made for"
    )


def _spelt(tokenizer: PreTrainedTokenizerBase, turn: Turn) -> bool:
    """Whether a turn's text is that of its sampled ids, where it has both."""
    if not turn.text or turn.finish == "error":
        return True
    ids = list(turn.action_ids)
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) == turn.text
