"""The retrieval environment: asks a protocol what comes next, keeps the budgets, applies actions, fetches passages."""

from __future__ import annotations

import copy
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Sequence

from common.costs import counted
from common.errors import ConfigError, RejectedError, RetrievalError
from common.seeds import stable_hash
from envs.interfaces import AgentFormat, Compressor, Retriever, Sampler
from envs.protocols.rendering import render_hits
from envs.requests import Act, Data, Done, Piece, Request
from envs.token_ids import fingerprint
from envs.types import Episode, Hit, Limits, Question, Status, Turn

log = logging.getLogger(__name__)


class RetrievalEnvironment:
    """Episodes of one protocol over one retriever. Holds no episode: it changes those it is given.

    Args:
        protocol: the format.
        retriever: where queries go; None where a protocol never searches.
        compressor: shortens what a query finds for the prompt; the passages themselves stay in the episode's hits.
        top_k: passages a query.
        limits: budgets; an episode that runs out of turns ends with `step_budget`, of tokens with `token_budget`.
        max_failures: failed retrieval calls in a row after which work stops; single ones end only their episodes.

    Attributes:
        seconds: spent in retrieval so far.
    """

    def __init__(
        self,
        protocol: AgentFormat,
        retriever: Retriever | None = None,
        *,
        compressor: Compressor | None = None,
        top_k: int = 3,
        limits: Limits | None = None,
        max_failures: int = 3,
    ) -> None:
        self.protocol, self.retriever, self.compressor, self.top_k = protocol, retriever, compressor, top_k
        self.limits = limits or Limits()
        self.max_failures = max_failures
        self._failures, self.seconds = 0, 0.0
        self._compression: Counter[str] = Counter()

    @property
    def counts(self) -> Counter[str]:
        """Counts of its parts, and `compression/…`: tokens that the compressor got and left, prompts left empty."""
        return counted(self.compressor, self.protocol, self.retriever) + self._compression

    def check(self, *samplers: Sampler) -> None:
        """Check before any work that these samplers can be used here.

        Raises:
            ConfigError: a sampler's own reason.
        """
        for sampler in samplers:
            sampler.check(self.protocol, self.limits)

    def variant(self, *, retriever: Retriever | None = None, limits: Limits | None = None) -> RetrievalEnvironment:
        """This environment with another retriever or other limits; None keeps what it has."""
        variant = copy.copy(self)
        variant.retriever, variant.limits = retriever or self.retriever, limits or self.limits
        return variant

    def start(self, question: Question, *, iteration: int = 0, sample: int = 0) -> Episode:
        """A new attempt at a question."""
        made_by = fingerprint(self.protocol.codec.tokenizer)
        prompt_ids = self.protocol.prompt(question)
        return Episode(question, prompt_ids, iteration=iteration, sample=sample, tokenizer=made_by)

    def next(self, episode: Episode, seed: int, *, at_least: int = 1) -> Request | Act | None:
        """What happens next within the budgets, or None when the episode is over (its status is then set).

        It is over, too, where there is no room for a turn of `at_least` tokens.
        A request's random numbers come from hash(seed, iteration, question, sample, turn).
        """
        if episode.status is not None:  # an error ended it already
            return None
        upcoming = self.protocol.next(episode)
        if isinstance(upcoming, Done):
            return self._finish(episode, upcoming.status)
        if isinstance(upcoming, Act):
            longest = max((len(one.prefix()) + len(one.forced_ids or ()) for one in upcoming.alternatives), default=0)
            return upcoming if longest <= self.limits.total_tokens else self._no_room(episode)
        if sum(turn.finish != "scripted" for turn in episode.turns) >= self.limits.turns:
            return self._finish(episode, "step_budget")
        if upcoming.context is not None:
            room = self.limits.total_tokens - len(upcoming.opening_ids) - 1
            ids = self._encode(episode, upcoming.context, room)
            upcoming = dataclasses.replace(upcoming, context_ids=ids)
        room = self.limits.total_tokens - len(upcoming.prefix())
        if room < max(at_least, len(upcoming.forced_ids or ())):
            return self._no_room(episode)
        return dataclasses.replace(
            upcoming,
            max_tokens=min(upcoming.max_tokens or self.limits.turn_tokens, room),
            seed=stable_hash(seed, episode.iteration, episode.question.id, episode.sample, len(episode.turns)),
        )

    def _no_room(self, episode: Episode) -> None:
        sampled = any(turn.finish != "scripted" for turn in episode.turns)
        episode.truncations["total" if sampled else "prompt"] = 1
        self._finish(episode, "token_budget")

    def act(self, act: Act) -> Turn:
        """The turn that a protocol's own action makes: nothing is sampled, nothing is trained.

        Raises:
            ConfigError: it has alternatives that no sampler has weighed (`envs.sampling.weighed`).
        """
        if act.alternatives:
            name = type(self.protocol).__name__
            raise ConfigError(f"{name} asks the policy to weigh alternatives: play it with envs.rollout, not in a tree")
        return Turn("protocol", (), (), (), "scripted", act.episode.next_uid(), action=act.action, trainable=False)

    def apply(self, episodes: Sequence[Episode], turns: Sequence[Turn]) -> None:
        """Append each turn to its episode with the observation of its action; queries are searched in one call.

        An episode whose retrieval or whose turn failed ends with status `error`: it is counted, never scored.

        Raises:
            RetrievalError: `max_failures` calls failed in a row.
            ConfigError: a protocol searches and there is no retriever.
        """
        searching = self.append(episodes, turns)
        self.observe(searching, self.search([turn.action.text for _, turn in searching]))

    def append(self, episodes: Sequence[Episode], turns: Sequence[Turn]) -> list[tuple[Episode, Turn]]:
        """The part of `apply` before the search; returns what is to be searched for, its observations still missing."""
        for episode, turn in zip(episodes, turns, strict=True):
            if turn.finish == "error":
                episode.error = turn.text
                self._finish(episode, "error")
                continue
            if turn.finish != "scripted":
                turn.action = self.protocol.parse(episode, turn)
            episode.turns.append(turn)
            if turn.finish == "length" and len(episode.context()) < self.limits.total_tokens:
                episode.truncations["turn"] += 1
        pairs = list(zip(episodes, turns, strict=True))
        for episode, turn in pairs:
            if episode.status is None and turn.action.kind != "query":
                turn.observation_ids = self._observation(episode, turn)
        return [pair for pair in pairs if pair[1].action.kind == "query"]

    def observe(self, searching: Sequence[tuple[Episode, Turn]], results: Sequence[list[Hit] | RetrievalError]) -> None:
        """The part of `apply` after the search: the observations of what was found, or the end of an episode."""
        for (episode, turn), hits in zip(searching, results, strict=True):
            if isinstance(hits, RetrievalError):
                episode.error = str(hits)
                self._finish(episode, "error")
            else:
                turn.hits = self._shortened(turn.action.text, hits)
                turn.observation_ids = self._observation(episode, turn)

    def search(self, queries: Sequence[str]) -> Sequence[list[Hit] | RetrievalError]:
        """Hits or an error for each query, in one call; one call at a time.

        Raises:
            RetrievalError: `max_failures` calls failed in a row.
            ConfigError: there is no retriever.
        """
        if not queries:
            return []
        if self.retriever is None:
            raise ConfigError("the protocol searches but the environment has no retriever: set `retriever`")
        start = time.perf_counter()
        try:
            results = self._answered(self.retriever, queries)
        except RetrievalError as error:
            self._failures += 1
            log.warning("%d queries failed: %s", len(queries), error)
            if self._failures >= self.max_failures:
                self._failures = 0
                raise RetrievalError(f"{error} ({self.max_failures} failed calls in a row: stopping)") from error
            return [error] * len(queries)
        finally:
            self.seconds += time.perf_counter() - start
        self._failures = 0
        return results

    def _answered(self, retriever: Retriever, queries: Sequence[str]) -> Sequence[list[Hit] | RetrievalError]:
        """Hits or an error for each query: where a call is rejected its queries are asked one by one.

        Raises:
            RetrievalError: the backend is down, or rejects every query.
        """
        try:
            return retriever.search(queries, self.top_k)
        except RejectedError as error:
            if len(queries) == 1:
                raise
            results = [self._one(retriever, query) for query in queries]
            if all(isinstance(result, RejectedError) for result in results):
                raise
            log.warning("a call was rejected, so its %d queries were asked one by one: %s", len(queries), error)
            return results

    def _one(self, retriever: Retriever, query: str) -> list[Hit] | RejectedError:
        """The hits of one query, or why it is rejected."""
        try:
            return retriever.search([query], self.top_k)[0]
        except RejectedError as error:
            return error

    def _shortened(self, query: str, hits: list[Hit]) -> tuple[Hit, ...]:
        """The hits as they are to be shown; one query at a time, so that no batch changes what it leaves of them.

        Raises:
            ConfigError: the compressor lost a hit or made one up.
        """
        if self.compressor is None or all(hit.shown is not None for hit in hits):  # none, or what a tool says
            return tuple(hits)
        shortened = self.compressor.compress(query, hits)
        if Counter(hit.document.id for hit in shortened) != Counter(hit.document.id for hit in hits):
            name = type(self.compressor).__name__
            raise ConfigError(f"{name}.compress must return every hit once: set `shown` to '' for what is left out")
        given, kept = (len(self.protocol.codec.data(render_hits(shown))) for shown in (hits, shortened))
        self._compression += Counter(
            {"compression/given_tokens": given, "compression/kept_tokens": kept, "compression/empty": kept == 0}
        )
        return tuple(shortened)

    def _observation(self, episode: Episode, turn: Turn) -> tuple[int, ...]:
        """Ids of what the environment writes; only the untrusted part is cut, so that there is room to continue.
        Room is reckoned against the context of the next turn, which a protocol may render anew.
        """
        codec = self.protocol.codec
        text = self.protocol.observe(episode, turn.action, turn.hits)
        before, data, after = codec.control(text.before), codec.data(text.data), codec.control(text.after)
        if not data:
            return before + after
        upcoming = self.protocol.next(episode)
        request = upcoming if isinstance(upcoming, Request) else None
        rest = len(before) + len(after) + (len(request.opening_ids) if request else 0) + 1
        if request is None or request.context is None:
            rest += len(episode.context())
        else:
            rest += sum(map(len, map(codec.encode_piece, request.context)))
        [data] = self._cut(episode, [data], max(0, self.limits.total_tokens - rest))
        return before + data + after

    def _encode(self, episode: Episode, pieces: Sequence[Piece], room: int) -> tuple[int, ...]:
        """Ids of a context that is rendered anew, its passages cut to the limits: the last ones first."""
        codec = self.protocol.codec
        encoded = [codec.encode_piece(piece) for piece in pieces]
        places = [i for i, piece in enumerate(pieces) if isinstance(piece, Data) and piece.cuttable]
        fixed = sum(len(ids) for i, ids in enumerate(encoded) if i not in places)
        cut = self._cut(episode, [encoded[i] for i in places], max(0, room - fixed))
        for i, ids in zip(places, cut, strict=True):
            encoded[i] = ids
        return tuple(id_ for ids in encoded for id_ in ids)

    def _cut(self, episode: Episode, passages: Sequence[tuple[int, ...]], room: int) -> list[tuple[int, ...]]:
        """Retrieved text, each piece within the limit on observations, all together within `room` tokens."""
        limit = self.limits.observation_tokens
        kept: list[tuple[int, ...]] = []
        for ids in passages:
            allowed = min(limit, room)
            if len(ids) > allowed:
                if limit <= room:
                    episode.truncations["observation"] += 1
                else:
                    episode.truncations["total"] = 1
            kept.append(ids[:allowed])
            room -= len(kept[-1])
        return kept

    def _finish(self, episode: Episode, status: Status) -> None:
        episode.status = status
        episode.steps = self.protocol.steps(episode)
        require_whole_steps(episode, type(self.protocol).__name__)
        episode.answer = "" if status == "error" else self.protocol.answer(episode)


def require_whole_steps(episode: Episode, protocol: str) -> None:
    """Every sampled token of a trained turn lies in exactly one step: one in none would train without credit.

    Raises:
        ConfigError: a token lies in none or in several; names the protocol, the turn and the token.
    """
    steps_of = Counter(
        (turn, place) for step in episode.steps for turn, start, end in step.spans for place in range(start, end)
    )
    for number, turn in enumerate(episode.turns):
        for place in range(len(turn.action_ids) if turn.trainable else 0):
            if (count := steps_of[number, place]) != 1:
                where = f"question {episode.question.id}, turn {number}, token {place}"
                raise ConfigError(f"{protocol}.steps puts a sampled token into {count} steps, not one ({where})")
