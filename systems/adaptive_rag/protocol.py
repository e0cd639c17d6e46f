"""Adaptive-RAG (Jeong et al. 2024, arXiv 2403.14403): each question in the format that a classifier chooses for it.

Route A answers without retrieval, B after one, C after many. An episode is that of its route, to the byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from common.costs import counted
from common.errors import ConfigError
from envs.interfaces import AgentFormat
from envs.requests import Act, Done, Request
from envs.token_ids import fingerprint
from envs.types import Action, Episode, Hit, Move, Observation, Question, Step, Turn
from systems.adaptive_rag.router import LETTERS, Router

_KEPT = 4096  # questions whose route is remembered: each is asked for once


class AdaptiveRAG:
    """Three formats and a router.

    Args:
        routes: the formats by letter, `A` the simplest; all for one tokenizer.
        router: chooses a letter from the text of a question.

    Raises:
        ConfigError: a route is missing, or two have different tokenizers.
    """

    def __init__(self, routes: dict[str, AgentFormat], router: Router) -> None:
        if sorted(routes) != sorted(LETTERS):
            raise ConfigError(f"routes are {', '.join(routes) or 'empty'}; give one for each of {', '.join(LETTERS)}")
        self.routes = {letter: routes[letter] for letter in LETTERS}
        if len({fingerprint(route.codec.tokenizer) for route in routes.values()}) > 1:
            raise ConfigError("the routes have different tokenizers: give all of them that of the policy")
        self.codec = self.routes[LETTERS[0]].codec
        self.moves = tuple(dict.fromkeys(move for route in self.routes.values() for move in route.moves))
        self._router, self._letter = router, lru_cache(_KEPT)(router.letter)

    @property
    def counts(self) -> Counter[str]:
        """What the router has read."""
        return counted(self._router)

    def _route(self, question: Question) -> AgentFormat:
        return self.routes[self._letter(question.text)]

    def prompt(self, question: Question) -> tuple[int, ...]:
        return self._route(question).prompt(question)

    def next(self, episode: Episode) -> Request | Act | Done:
        return self._route(episode.question).next(episode)

    def parse(self, episode: Episode, turn: Turn) -> Action:
        return self._route(episode.question).parse(episode, turn)

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        return self._route(episode.question).observe(episode, action, hits)

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        return self._route(episode.question).steps(episode)

    def valid(self, episode: Episode) -> bool:
        return self._route(episode.question).valid(episode)

    def answer(self, episode: Episode) -> str:
        return self._route(episode.question).answer(episode)

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        return self._route(episode.question).say(episode, moves)

    def choices(self, episode: Episode) -> Mapping[str, int]:
        """Which route the question took."""
        return {f"route/{letter}": int(letter == self._letter(episode.question.text)) for letter in LETTERS}
