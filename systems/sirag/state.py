"""SIRAG's joint state: what both agents know together before a turn, as the critic and a judge of actions read it."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import ConfigError
from envs.requests import Control, Data
from envs.types import Action, Episode, Hit, Question
from systems.sirag.parse import DECISION, KEEP, kept, states
from systems.sirag.protocol import GENERATOR, KNOWLEDGE_SELECTOR, SIRAG, listed

_SHOWN = "{agent}\n\nPassages:\n{evidence}\n{passages}\nSearches: {searches}\n\nQuestion: {question}"


class JointState:
    """The token ids of a joint state: agent, evidence pool, passages to select from, searches, question.

    The agent is known by its tag, `<decision>` or `<keep>`.

    Args:
        protocol: of the episodes.
        tokens: at most; passages are cut, the last first.

    Raises:
        ConfigError: `tokens` is below 1; on rendering, question and template alone are longer.
    """

    def __init__(self, protocol: SIRAG, *, tokens: int = 1024) -> None:
        if tokens < 1:
            raise ConfigError(f"joint state: tokens {tokens} must be at least 1")
        self.protocol, self.tokens = protocol, tokens

    def __call__(self, episode: Episode, number: int) -> tuple[int, ...]:
        """The ids before turn `number` of an episode."""
        state, codec = states(episode.turns[:number])[-1], self.protocol.codec
        pieces = codec.chat(
            _SHOWN,
            agent=Control(KEEP if episode.turns[number].agent == KNOWLEDGE_SELECTOR else DECISION),
            evidence=listed(state.evidence),
            passages=listed(state.shown),
            searches=Control(f"{state.retrievals} of {self.protocol.retrievals}"),
            question=episode.question.text,
        )
        encoded = [codec.encode_piece(piece) for piece in pieces]
        over = sum(map(len, encoded)) - self.tokens
        for place in reversed(range(len(pieces))):
            piece = pieces[place]
            if over > 0 and isinstance(piece, Data) and piece.cuttable:
                cut = min(over, len(encoded[place]))
                encoded[place], over = encoded[place][: len(encoded[place]) - cut], over - cut
        if over > 0:
            raise ConfigError(f"question {episode.question.id} leaves no room in a joint state of {self.tokens} tokens")
        return tuple(token for ids in encoded for token in ids)


@dataclass(frozen=True, slots=True)
class Choice:
    """An agent's action and the joint state that it was taken in.

    Attributes:
        uid: of its turn; paths of a tree share it.
        evidence: the pool before it.
        shown: the passages to select from; empty where the decision maker acts.
        hits: what its query found.
        kept: what it selects.
    """

    question: Question
    agent: str
    uid: str
    action: Action
    evidence: tuple[Hit, ...]
    shown: tuple[Hit, ...] = ()
    hits: tuple[Hit, ...] = ()
    kept: tuple[Hit, ...] = ()


def choices_of(episode: Episode) -> list[Choice | None]:
    """The choice of each turn of an episode; None for the generator's."""
    before = states(episode.turns)
    return [
        None
        if turn.agent == GENERATOR
        else Choice(
            episode.question,
            turn.agent,
            turn.uid,
            turn.action,
            before[number].evidence,
            shown=before[number].shown,
            hits=turn.hits,
            kept=kept(turn.action, before[number].shown) if turn.agent == KNOWLEDGE_SELECTOR else (),
        )
        for number, turn in enumerate(episode.turns)
    ]
