"""The data types of the suite. Everything that packages pass to each other is made of these.

Token ids are the source of truth from sampling to the loss: a sampled token is never decoded and encoded again to be
trained on. Suffixes of array names elsewhere: B sequences, T tokens, S steps, V vocabulary, K children, N pairs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from common.errors import ConfigError
from envs.training_view import TrainingSequence, training_sequences

Status = Literal["answered", "step_budget", "token_budget", "exhausted", "malformed", "error"]
Finish = Literal["stop", "eos", "length", "scripted", "error"]
MoveKind = Literal["search", "read", "recall", "conclude"]


@dataclass(frozen=True, slots=True)
class GoldStep:
    """One hop of the reasoning that a dataset knows: a sub-question, its answer, the documents that support it."""

    question: str
    answer: str
    documents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gold:
    """Gold reasoning of a question, as far as its dataset has it; every field may be empty.

    `documents` are ids in the dataset's own corpus and `titles` their titles: titles are not unique in every corpus
    (MuSiQue), ids do not carry over to another corpus, so both are kept.
    """

    hops: int | None = None
    type: str | None = None
    steps: tuple[GoldStep, ...] = ()
    documents: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its accepted answers (aliases, at least one) and, where known, the gold reasoning."""

    id: str
    text: str
    answers: tuple[str, ...]
    gold: Gold | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A passage of a corpus."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A retrieved passage; `score` is None where the backend gives none.

    `shown` is what a compressor leaves of it for the prompt; None is all of it, title and text, and empty nothing.
    """

    document: Document
    score: float | None = None
    shown: str | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """Action that a turn asks of the environment.

    `kind` is a protocol's own word, with two that the environment acts on: `query` (search for `text`) and `answer`.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Observation:
    """Text of the environment after an action: trusted control text around untrusted data.

    Only `data` is neutralised and cut to the observation limit, so a cut never loses a closing tag.
    """

    before: str = ""
    data: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of an episode: sampled turns, sampled tokens a turn, tokens of retrieved text a turn, tokens in all.

    Retrieved text is cut to its limit; running out of turns or of total tokens ends the episode.

    Raises:
        ConfigError: a budget leaves nothing.
    """

    turns: int = 11
    turn_tokens: int = 1024
    observation_tokens: int = 2048
    total_tokens: int = 8192

    def __post_init__(self) -> None:
        for name, least in (("turns", 1), ("turn_tokens", 1), ("observation_tokens", 0), ("total_tokens", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"limits.{name} is {getattr(self, name)}; it must be at least {least}")


@dataclass(slots=True)
class Turn:
    """What is sampled at once, and what the environment answers.

    `opening_ids` is scaffold before the sampled tokens and `observation_ids` text after them; neither is trained.
    `context_ids` is set only when the protocol re-renders its context: the whole context this turn was sampled in,
    up to `opening_ids`. `action_logps` are at the sampling temperature, before or after top-p as the sampler states.
    `text` is `action_ids` decoded with special tokens kept; of a turn that could not be sampled (`error`) it is the
    reason. A `uid` names one sampling, so a turn shared by many paths of a tree is trained once.
    """

    agent: str
    opening_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    action_logps: tuple[float, ...]
    finish: Finish
    uid: str
    text: str = ""
    context_ids: tuple[int, ...] | None = None
    action: Action = field(default=Action("none", ""))
    hits: tuple[Hit, ...] = ()
    observation_ids: tuple[int, ...] = ()
    trainable: bool = True

    def ids(self) -> tuple[int, ...]:
        """All token ids that it holds."""
        return (self.context_ids or ()) + self.opening_ids + self.action_ids + self.observation_ids


@dataclass(frozen=True, slots=True)
class Step:
    """The unit of credit. Every sampled token of an episode lies in exactly one step.

    One a turn in ProRAG; in HiPRAG a turn may hold several steps and a step may span two turns. Oracles and judges read
    `query` and `claim`, and of the kinds only `answer`, the last step of an episode that answers.

    Attributes:
        kind: the protocol's own word for it.
        valid: whether it follows the format.
        spans: (turn, start, end) ranges of `action_ids`, end exclusive.
        query: what it searches for; empty where it does not search.
        claim: what it asserts; empty where it asserts nothing, None where the format has no place for it.
        said: what the policy wrote in it.
        hits: what its search found.
        recall: whether its claim comes from memory, so that no passage need support it.
        kept: ids of those that it keeps as evidence, where it selects from passages (its `hits`); None in other steps.
        dropped: whether the protocol throws it away and has it written again: there is no truth to tell of it.
    """

    kind: str
    valid: bool
    spans: tuple[tuple[int, int, int], ...]
    query: str = ""
    claim: str | None = ""
    said: str = ""
    hits: tuple[Hit, ...] = ()
    recall: bool = False
    kept: tuple[str, ...] | None = None
    dropped: bool = False

    @property
    def text(self) -> str:
        """The query or, without one, the claim: what is shown of the step."""
        return self.query or self.claim or ""


@dataclass(frozen=True, slots=True)
class Move:
    """A teacher's next move, in no format: a protocol writes it (`AgentFormat.say`).

    `search` for the query `text`; `read`, claim `text` from the hits just seen; `recall`, claim `text` without a
    search; `conclude` with the answer `text`. `thought` is the reasoning before it, and `documents` are those, by id or
    title, of the hits just seen that it rests on, where the teacher knows them.
    """

    kind: MoveKind
    text: str
    thought: str = ""
    documents: tuple[str, ...] = ()


@dataclass(slots=True)
class Episode:
    """One attempt at a question: the prompt, the turns so far and, once finished, status, answer and steps.

    `iteration` and `sample` tell attempts at the same question apart; all random numbers derive from them.
    `truncations` counts cuts by name (`turn`, `observation`, `total`, `prompt`); `error` says why status is `error`.
    `weight` is what its policy loss is to be multiplied by, where an action of it was given and not sampled.
    `tokenizer` is the fingerprint (`envs.token_ids`) of the tokenizer whose token ids it holds; empty where unknown.
    """

    question: Question
    prompt_ids: tuple[int, ...]
    turns: list[Turn] = field(default_factory=list)
    status: Status | None = None
    answer: str = ""
    steps: tuple[Step, ...] = ()
    iteration: int = 0
    sample: int = 0
    truncations: Counter[str] = field(default_factory=Counter)
    error: str = ""
    weight: float = 1.0
    tokenizer: str = ""

    def context(self) -> tuple[int, ...]:
        """The token ids that the next turn continues, unless it re-renders its context."""
        ids = self.prompt_ids
        for turn in self.turns:
            start = ids if turn.context_ids is None else turn.context_ids
            ids = start + turn.opening_ids + turn.action_ids + turn.observation_ids
        return ids

    def next_uid(self) -> str:
        """The `uid` of the turn that comes next."""
        return f"{self.question.id}/{self.iteration}/{self.sample}/{len(self.turns)}"

    def sequences(self) -> list[TrainingSequence]:
        """The training view: one sequence where the context only grows, one a turn where it is re-rendered."""
        return training_sequences(self.prompt_ids, self.turns, self.steps)

    def _repr_html_(self) -> str:
        from envs.episode_html import episode_html

        return episode_html(self)
