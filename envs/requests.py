"""Requests of a protocol: a turn to be sampled, a turn of its own, or the end of the episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from envs.types import Action, Episode, Finish, Question, Status, Turn


@dataclass(frozen=True, slots=True)
class Control:
    """A piece of a context: trusted text, in which tags become their tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Quoted:
    """A piece of a context: token ids that the policy sampled earlier; never cut, and not trained in this place."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Data:
    """A piece of a context: untrusted text, neutralised; passages may be cut to the limits, a question may not."""

    text: str
    cuttable: bool = False


Piece = Control | Quoted | Data


@dataclass(frozen=True, slots=True)
class Request:
    """A turn to be sampled.

    Attributes:
        episode: what it continues.
        opening_ids: scaffold between the context and the sampled tokens.
        stop: strings that end the turn.
        agent: which model samples it.
        context: replaces the episode's context where a protocol re-renders it; the environment encodes the pieces.
        trains: whether the turn is trained; a frozen generator's never is.
        forced_ids: the turn itself, to be scored and not sampled.
        first_ids: how the turn begins: these tokens are scored, those after them sampled.
        max_tokens: None means the environment's limit of a turn.
        context_ids: the encoded `context`, set by the environment.
        seed: of the turn's random numbers, set by the environment.
        greedy: take the most probable token each time, whatever the temperature.
        temperature: of sampling, in place of the sampler's.
        top_p: nucleus sampling mass, in place of the sampler's.
    """

    episode: Episode
    opening_ids: tuple[int, ...]
    stop: tuple[str, ...]
    agent: str = "policy"
    context: tuple[Piece, ...] | None = None
    trains: bool = True
    forced_ids: tuple[int, ...] | None = None
    first_ids: tuple[int, ...] = ()
    max_tokens: int | None = None
    context_ids: tuple[int, ...] | None = None
    seed: int = 0
    greedy: bool = False
    temperature: float | None = None
    top_p: float | None = None

    def prefix(self) -> tuple[int, ...]:
        """All token ids before the first sampled one."""
        return (self.episode.context() if self.context_ids is None else self.context_ids) + self.opening_ids

    def turn(self, ids: Sequence[int], logps: Sequence[float], finish: Finish, text: str) -> Turn:
        """The turn that answers this request: sampled ids, their log-probs, how it ended, the ids as text."""
        return Turn(
            agent=self.agent,
            opening_ids=self.opening_ids,
            action_ids=tuple(ids),
            action_logps=tuple(logps),
            finish=finish,
            uid=self.episode.next_uid(),
            text=text,
            context_ids=self.context_ids,
            trainable=self.trains,
        )


def forced_request(prefix_ids: Sequence[int], ids: Sequence[int], *, agent: str) -> Request:
    """A request of token ids alone, outside of any episode: to score `ids` after `prefix_ids` (`Sampler.score`)."""
    return Request(Episode(Question("", "", ()), tuple(prefix_ids)), (), (), agent=agent, forced_ids=tuple(ids))


@dataclass(frozen=True, slots=True)
class Act:
    """A turn that the protocol takes itself, without sampling (a first retrieval with the question, say).

    `alternatives` (`forced_request`) are scored by the policy: nothing is sampled. The summed log-probs of each become
    the text of the action, which `weighed_logps` reads.
    """

    episode: Episode
    action: Action
    alternatives: tuple[Request, ...] = ()


def weighed_logps(turn: Turn) -> list[float]:
    """The log-probs of the alternatives of an `Act`, in their order, from the turn that it became."""
    return [float(logp) for logp in turn.action.text.split()]


@dataclass(frozen=True, slots=True)
class Done:
    """The episode is over."""

    status: Status


@dataclass(frozen=True, slots=True)
class OwnAnswer:
    """What the current policy answers to a query alone, None where it could not be asked, and what that cost."""

    text: str | None
    spent: Counter[str]
