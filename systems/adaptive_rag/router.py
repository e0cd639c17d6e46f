"""Routers of Adaptive-RAG: a language model that is asked for one of three letters."""

from __future__ import annotations

import typing
from collections import Counter

from common.costs import counted
from common.errors import ConfigError
from envs.interfaces import AgentFormat, Sampler
from envs.requests import Request, forced_request
from envs.types import Episode, Question

LETTERS = ("A", "B", "C")  # no retrieval, one, many: the simplest first
AGENT = "router"


class Router(typing.Protocol):
    """Chooses a route."""

    def letter(self, question: str) -> str:
        """One of `LETTERS`, from the text of a question alone."""
        ...


class LetterRouter:
    """The likeliest letter after the question, the first of equals; nothing is sampled. One question at a time.

    Args:
        sampler: of the classifier, with log-probs of tokens that it did not sample. Not the policy's sampler, whose
            counts are added up already.
        protocol: the format in which it was taught the letters as answers.

    Raises:
        ConfigError: on asking, the format retrieves before it answers.
    """

    def __init__(self, sampler: Sampler, protocol: AgentFormat) -> None:
        self._sampler, self._protocol = sampler, protocol

    @property
    def counts(self) -> Counter[str]:
        """What the sampler has read, as `router`."""
        return counted(self._sampler)

    def letter(self, question: str) -> str:
        asked = Question("", question, LETTERS)
        request = self._protocol.next(Episode(asked, self._protocol.prompt(asked)))
        if not isinstance(request, Request):
            raise ConfigError(
                f"{type(self._protocol).__name__} does not answer at once: a router needs retrieve: false"
            )
        prefix = request.prefix()
        requests = [forced_request(prefix, self._protocol.codec.control(one), agent=AGENT) for one in LETTERS]
        logps = dict(zip(LETTERS, map(sum, self._sampler.score(requests)), strict=True))
        return max(LETTERS, key=logps.__getitem__)
