"""Surprise of texts: negative log-probs, in nats, that a causal model gives to their tokens, and their words."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from common.costs import counted
from common.errors import ConfigError
from envs.requests import forced_request
from modules.samplers.in_process import InProcessSampler

_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Words:
    """A text in words and in token ids; `word_of` is the word of each token."""

    words: list[str]
    ids: tuple[int, ...]
    word_of: list[int]

    def of_words(self, values: Sequence[float], *, mean: bool = True) -> list[float]:
        """Means, or sums, of the values of each word's tokens; 0 for a word that no token ends in."""
        parts: list[list[float]] = [[] for _ in self.words]
        for word, value in zip(self.word_of, values, strict=True):
            parts[word].append(value)
        return [sum(part) / (len(part) if mean and part else 1) for part in parts]


class TextSurprise:
    """A causal model that scores texts; the scorer of a compressor.

    A text begins after the token that begins texts or, without one, that ends messages. What is longer than the window
    is read in pieces, each after as much of what precedes it as fits. `counts` has the tokens that were read.

    Args:
        sampler: of the model.
        agent: the name that its tokens are counted under.
        window: tokens that are read at once at most.

    Raises:
        ConfigError: the window has no room, or the tokenizer neither begins texts nor ends messages.
    """

    def __init__(self, sampler: InProcessSampler, *, agent: str = "scorer", window: int = 1024) -> None:
        if window < 4:
            raise ConfigError(f"window is {window}; it must be at least 4")
        self.sampler, self.agent, self.window = sampler, agent, window
        self._tokenizer = sampler.policy.tokenizer
        start = self._tokenizer.bos_token_id
        start = self._tokenizer.eos_token_id if start is None else start
        if start is None:
            raise ConfigError(f"the tokenizer of {agent} has neither bos_token nor eos_token: set one of them")
        self._start = cast(int, start)

    @property
    def counts(self) -> Counter[str]:
        """What the sampler has counted."""
        return counted(self.sampler)

    def read(self, text: str) -> Words:
        """A text in words and tokens; special tokens in it are read as text. A blank belongs to the word after it."""
        encoded = self._tokenizer(
            text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
        )
        found = list(_WORD.finditer(text))
        ends = [match.end() for match in found]
        tokens = [
            (token, min(bisect_left(ends, end), len(ends) - 1))
            for token, (_, end) in zip(encoded.input_ids, encoded.offset_mapping, strict=True)
            if ends
        ]
        return Words([match[0] for match in found], tuple(token for token, _ in tokens), [word for _, word in tokens])

    def of(self, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """Surprise of each token of `ids` after `prefix`, for every (prefix, ids), all in one batch."""
        piece = self.window // 2
        pieces = [
            (number, (*prefix, *ids[:first]), tuple(ids[first : first + piece]))
            for number, (prefix, ids) in enumerate(texts)
            for first in range(0, len(ids), piece)
        ]
        requests = []
        for _, before, ids in pieces:
            room = self.window - 1 - len(ids)
            requests.append(forced_request((self._start, *before[-room:]), ids, agent=self.agent))
        surprise: list[list[float]] = [[] for _ in texts]
        for (number, _, _), logps in zip(pieces, self.sampler.score(requests), strict=True):
            surprise[number] += [-logp for logp in logps]
        return surprise
