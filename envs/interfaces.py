"""Interfaces of agent formats, samplers, retrievers, tools and judges, so that packages need not import each other."""

from __future__ import annotations

import typing
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any

from common.errors import ConfigError
from envs.judgements import Judgement as Judgement
from envs.judgements import Oracle as Oracle
from envs.pairs import Candidate, Verdict
from envs.requests import Act, Done, OwnAnswer, Request
from envs.types import Action, Episode, Hit, Limits, Move, MoveKind, Observation, Question, Step, Turn

if TYPE_CHECKING:  # a retriever's server needs no tokenizer, and transformers takes seconds to import
    from torch import Tensor

    from envs.text import Codec


class AgentFormat(typing.Protocol):
    """Format in which a policy and the environment talk: the only place that knows a method's tags.

    A protocol holds no state of an episode; everything is read from the episode.
    """

    codec: Codec
    moves: tuple[MoveKind, ...]  # the moves that `say` can write

    def prompt(self, question: Question) -> tuple[int, ...]:
        """Token ids that open an episode."""
        ...

    def next(self, episode: Episode) -> Request | Act | Done:
        """The next request, act or end of an episode; budgets of turns and tokens are the environment's."""
        ...

    def parse(self, episode: Episode, turn: Turn) -> Action:
        """Read a sampled turn, leniently: what it asks for, even where `steps` will call it invalid.

        The episode is as it was before the turn.
        """
        ...

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        """The environment's text after an action; all three parts are empty where it writes none.

        The last turn of the episode is the one that took the action.
        """
        ...

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        """The units of credit, strictly judged, read from the policy's turns alone.

        Every sampled token of a trained turn lies in exactly one of them.
        """
        ...

    def valid(self, episode: Episode) -> bool:
        """Whether the whole episode follows the format."""
        ...

    def answer(self, episode: Episode) -> str:
        """The final answer, read from the turns; empty if there is none."""
        ...

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        """The text of the next turn of a teacher that is about to make these moves.

        `moves` are all that can be made before a search brings new hits, at least one. A format with one move a turn
        writes the first; the teacher makes the others later.
        """
        ...


class Sampler:
    """Writes turns: a language model, in this process or behind a server, or a teacher that knows the world.

    A subclass that needs no batch writes one turn in `take`; any other has its own `submit`, `collect` and `release`.
    What else is here has a default that fits a sampler which writes any format, at once, and from no policy.

    Attributes:
        temperature: of sampling; 0 where nothing is drawn.
        top_p: nucleus sampling mass; 1 draws from the whole distribution.
        counts: what it has met and spent so far: tokens by agent (`common.costs.tokens_of`), failures.
        arrival: set whenever an answer has come, where turns are made elsewhere (`waits`).
    """

    temperature: float = 0.0
    top_p: float = 1.0
    counts: Counter[str]
    arrival: Event | None = None

    def __init__(self) -> None:
        self.counts = Counter()
        self._requests: list[Request] = []

    def take(self, request: Request) -> Turn:
        """The turn that answers a request, of a sampler that answers them one by one."""
        raise NotImplementedError

    def submit(self, requests: Sequence[Request]) -> None:
        """Take requests; a request's `agent` picks the model."""
        self._requests += requests

    def collect(self) -> list[tuple[Request, Turn]]:
        """Finished requests with their turns, in the order of submission: at least one, where any is open."""
        requests, self._requests = self._requests, []
        return [(request, self.take(request)) for request in requests]

    def release(self, episodes: Sequence[Episode]) -> None:
        """Forget the open requests of these episodes, and whatever is kept for them (a key-value cache)."""
        released = {id(episode) for episode in episodes}
        self._requests = [request for request in self._requests if id(request.episode) not in released]

    def load(self, policy: Any) -> None:
        """Sample from this policy from now on; called after every update.

        Raises:
            ConfigError: it cannot sample from a policy.
        """
        raise ConfigError(f"{type(self).__name__} writes its turns itself: it cannot sample from a policy")

    def rest(self) -> None:
        """Nothing is asked until an update has ended: give back the memory that the update can use."""

    def freeze(self) -> bool:
        """Whether it samples from the weights as they are now until the next `load`, even while the policy trains."""
        return False

    def check(self, protocol: AgentFormat, limits: Limits) -> None:
        """Require a protocol and limits that it can work with.

        Raises:
            ConfigError: says what does not fit, and what to change.
        """

    def hold(self, episodes: Sequence[Episode]) -> None:
        """Keep what is read for the questions of these episodes until they are released; nothing need be sampled."""

    @property
    def engine_dtype(self) -> str | None:
        """Type that the trained policies' log-probs are computed in, the coarsest if several; None: in their model."""
        return None

    @property
    def model(self) -> Any:
        """The model that it samples from, where that is in this process and may train; None elsewhere."""
        return None

    def score(self, requests: Sequence[Request]) -> list[tuple[float, ...]]:
        """Log-probs of each request's `forced_ids` after its prefix, in the order of the requests; nothing is sampled.

        They are in nats, one a token, at temperature 1 whatever the sampler's. What the model reads for it is counted
        by agent (`common.costs.read_by`). `envs.requests.forced_request` makes a request of token ids alone.

        Raises:
            ConfigError: it has no log-probs of tokens that it did not sample.
        """
        name = type(self).__name__
        raise ConfigError(
            f"{name} gives no log-probs of tokens that it did not sample: score with InProcessSampler or VLLMSampler"
        )

    @property
    def waits(self) -> bool:
        """Whether turns are being made elsewhere, so that those of several samplers can be waited for at once."""
        return False

    def poll(self) -> list[tuple[Request, Turn]]:
        """As `collect`, but of turns that are made elsewhere only those that are done by now, which may be none."""
        return self.collect()


class Retriever(typing.Protocol):
    """Finds passages."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits a query, best first.

        Raises:
            RetrievalError: the backend failed after its retries.
        """
        ...


class Tool(typing.Protocol):
    """Answers a query that is no search: a calculator, a database, a function of a server (`envs.tools.routing`)."""

    def call(self, query: str) -> str:
        """What the policy is shown: untrusted text, neutralised and cut as passages are.

        Raises:
            ToolError: the query has no answer; the policy is shown the reason.
            RetrievalError: the tool is down; as where a retriever is.
        """
        ...


class Compressor(typing.Protocol):
    """Shortens passages between the retriever and the prompt."""

    def compress(self, question: str, hits: Sequence[Hit]) -> list[Hit]:
        """The hits, each once, in the order to be shown in, with what the prompt shows of them in `shown`.

        `question` is the query that found them. What it reads or writes for this is in its `counts`.
        """
        ...


class Judge(typing.Protocol):
    """Compares steps on one question: siblings, which differ in their last turn, or steps with different histories.

    A judge that can compare siblings alone raises a ConfigError at others.
    """

    def compare(self, groups: Sequence[Sequence[Candidate]]) -> list[tuple[Verdict, ...] | None]:
        """For each group of candidates its verdicts, best first: empty where no pair is clearly better and worse.

        None where no answer was had: a failed call is counted by the judge and never becomes a preference. A judge
        that cannot work at all raises a UserError: what it left undone is asked for when the command is repeated.
        """
        ...


class StepJudge(typing.Protocol):
    """Scores single steps for correctness, each independently."""

    def label(self, candidates: Sequence[Candidate]) -> list[float | None]:
        """For each candidate's last turn a number in [0, 1], 1 where all that it wrote is right; None is no label.

        A failed call never becomes a label, and a judge that cannot work at all raises, as in `Judge.compare`.
        """
        ...


class AnswerJudge(typing.Protocol):
    """Says whether answers are right: by a model's opinion."""

    def correct(self, episodes: Sequence[Episode]) -> list[bool | None]:
        """One verdict a finished episode, in order; None where none was had. Failures are as in `Judge.compare`."""
        ...


class StepScorer(typing.Protocol):
    """Says how good every step of an episode is: a process reward model."""

    def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
        """One `[S]` float32 an episode, in order; 0 is even odds where the scorer is calibrated, NaN is no score."""
        ...


@dataclass(frozen=True, slots=True)
class RewardContext:
    """Context of a reward: what it may use besides the episodes that it scores.

    `sampler` asks the current policy, while its parameters are gathered; what it samples is counted. None outside
    training. `logged` holds what the reward has logged; `counts` takes what rewards spend, such as calls of a judge
    (`common.costs.JUDGE_CALLS`). `alone` are the policy's own answers in this iteration by query, each asked once;
    what several ranks asked is accounted for once.
    """

    protocol: AgentFormat
    sampler: Sampler | None = None
    counts: Counter[str] = field(default_factory=Counter)
    logged: dict[str, Tensor] = field(default_factory=dict)
    alone: dict[str, OwnAnswer] = field(default_factory=dict)

    def log(self, name: str, values_N: Tensor) -> None:
        """Log the mean of these values, over all ranks, as `rewards/<term>/<name>`; NaN is left out.

        A reward logs the same names, in the same order, in every call: ranks add their values up name by name.
        """
        self.logged[name] = values_N
