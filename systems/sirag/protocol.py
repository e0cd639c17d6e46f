"""SIRAG: two agents gather evidence for a frozen generator.

    decision_maker      sees the question, the evidence pool and the number of retrievals so far
        <decision>retrieve</decision> thought <query>text</query>  |  <decision>stop</decision>
    knowledge_selector  sees the question and the passages that were found and are not in the pool yet
        <keep>1,3</keep>                                           what it keeps joins the pool; it may keep none
    generator           sees the question and the pool, and answers; it is never trained

Every context is rendered anew. A decision that cannot be read is one to stop, a selection that cannot be read keeps
all. After the last retrieval the generator answers without another decision. Without public code: the paper as
summarised, the text format ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common.document_names import title_key
from common.errors import ConfigError
from envs.protocols.direct import FROM_PASSAGES
from envs.protocols.rendering import render_hits
from envs.protocols.step_a_turn import RendersAnew, plain_text, turn_step
from envs.requests import Act, Control, Data, Done, Piece, Request
from envs.text import Codec
from envs.types import Action, Episode, Hit, Move, MoveKind, Step, Turn
from systems.sirag.parse import (
    DECISION,
    END_DECISION,
    END_KEEP,
    END_QUERY,
    KEEP,
    NO_DECISION,
    NO_NUMBER,
    NO_QUERY,
    NO_SELECTION,
    OUT_OF_RANGE,
    QUERY,
    REPEATED,
    TAGS,
    TWO_DECISIONS,
    State,
    kept,
    read_decision,
    read_selection,
    states,
)

DECISION_MAKER, KNOWLEDGE_SELECTOR, GENERATOR = "decision_maker", "knowledge_selector", "generator"
EMPTY = "none"  # what stands in place of an empty evidence pool
FLAWS = (NO_DECISION, TWO_DECISIONS, NO_QUERY, NO_SELECTION, NO_NUMBER, OUT_OF_RANGE, REPEATED)

DECIDING = f"""Decide whether the evidence is enough to answer the question. If it is, write {DECISION}stop\
{END_DECISION}. If it is not, write {DECISION}retrieve{END_DECISION}{QUERY}one simple question to search for\
{END_QUERY}, which asks for the next thing that is missing."""
SELECTING = f"""Which of these passages help to answer the question, even if only a part of it? Write their numbers, \
as in {KEEP}1,3{END_KEEP}, or {KEEP}{END_KEEP} if none does."""


class SIRAG(RendersAnew):
    """The SIRAG protocol over one tokenizer.

    Args:
        tokenizer: folder or hub id; its chat template writes the prompts.
        deciding: what the decision maker's message says first.
        selecting: what the knowledge selector's message says first.
        answering: what the generator's message says first.
        retrievals: at most; after them the generator answers.

    Raises:
        ConfigError: nothing may be retrieved.
    """

    moves: tuple[MoveKind, ...] = ("search", "conclude")

    def __init__(
        self,
        tokenizer: Path | str,
        *,
        deciding: str = DECIDING,
        selecting: str = SELECTING,
        answering: str = FROM_PASSAGES,
        retrievals: int = 4,
    ) -> None:
        if retrievals < 1:
            raise ConfigError(f"retrievals is {retrievals}; it must be at least 1")
        self.codec, self.retrievals = Codec(tokenizer, TAGS), retrievals
        self.deciding = f"{deciding}\n\nPassages:\n{{passages}}\nSearches: {{searches}}\n\nQuestion: {{question}}"
        self.selecting = f"{selecting}\n\nPassages:\n{{passages}}\nQuestion: {{question}}"
        self.answering = f"{answering}\n\nPassages:\n{{passages}}\nQuestion: {{question}}"

    def next(self, episode: Episode) -> Request | Act | Done:
        agent, state = self.agent(episode), states(episode.turns)[-1]
        if agent is None:
            return Done("answered")
        question = episode.question.text
        if agent == KNOWLEDGE_SELECTOR:
            context = self.codec.chat(self.selecting, passages=listed(state.shown), question=question)
            return Request(episode, (), stop=(END_KEEP,), agent=agent, context=context)
        pool = listed(state.evidence)
        if agent == GENERATOR:
            context = self.codec.chat(self.answering, passages=pool, question=question)
            return Request(episode, (), stop=(), agent=agent, context=context, trains=False)
        searches = Control(f"{state.retrievals} of {self.retrievals}")
        context = self.codec.chat(self.deciding, passages=pool, searches=searches, question=question)
        return Request(episode, (), stop=(END_QUERY,), agent=agent, context=context)

    def agent(self, episode: Episode) -> str | None:
        """Whose turn it is; None after the answer."""
        last, state = episode.turns[-1] if episode.turns else None, states(episode.turns)[-1]
        if last and last.agent == GENERATOR:
            return None
        if state.shown:
            return KNOWLEDGE_SELECTOR
        stopped = last is not None and last.action.kind in ("stop", "invalid")
        return GENERATOR if stopped or state.retrievals == self.retrievals else DECISION_MAKER

    def parse(self, episode: Episode, turn: Turn) -> Action:
        if turn.agent == DECISION_MAKER:
            return read_decision(turn.text)
        if turn.agent == KNOWLEDGE_SELECTOR:
            return read_selection(turn.text, len(states(episode.turns)[-1].shown))
        return Action("answer", plain_text(self.codec, turn))

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        before = states(episode.turns)
        return tuple(self._step(index, turn, before[index]) for index, turn in enumerate(episode.turns))

    def _step(self, index: int, turn: Turn, state: State) -> Step:
        action, selects = turn.action, turn.agent == KNOWLEDGE_SELECTOR
        return turn_step(
            index,
            turn,
            valid=action.kind in ("query", "stop", "keep") or (action.kind == "answer" and bool(action.text)),
            claim=action.text if action.kind == "answer" else None,
            hits=state.shown if selects else turn.hits,
            kept=tuple(hit.document.id for hit in kept(action, state.shown)) if selects else None,
        )

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        """The selector keeps what the next move rests on; a generator that is asked before the end says nothing."""
        move, eos = moves[0], self.codec.tokenizer.eos_token
        agent, shown = self.agent(episode), states(episode.turns)[-1].shown
        thought, text = self.codec.neutralise(move.thought), self.codec.neutralise(move.text)
        if agent == KNOWLEDGE_SELECTOR:
            names = set(map(title_key, move.documents))
            rests = [{title_key(hit.document.id), title_key(hit.document.title)} & names for hit in shown]
            return f"{KEEP}{','.join(str(number) for number, on in enumerate(rests, 1) if on)}{END_KEEP}"
        if agent == DECISION_MAKER and move.kind == "search":
            return f"{DECISION}retrieve{END_DECISION} {thought} {QUERY} {text} {END_QUERY}"
        if agent == DECISION_MAKER:
            return f"{DECISION}stop{END_DECISION}{eos}"
        return f"{text if move.kind == 'conclude' else ''}{eos}"

    def choices(self, episode: Episode) -> dict[str, int]:
        """Counts of each agent's choices; see `evaluation.choices.CountsChoices`."""
        last = states(episode.turns)[-1]
        actions = Counter(turn.action.kind for turn in episode.turns)
        flaws = Counter(turn.action.text for turn in episode.turns if turn.action.kind in ("invalid", "keep_all"))
        selections = [step for step in self.steps(episode) if step.kept is not None]
        answers = actions["answer"]
        return {
            "decisions/retrieve": actions["query"],
            "decisions/stop": actions["stop"],
            "decisions/forced_stop": int(answers > actions["stop"] + actions["invalid"]),
            "passages/shown": sum(len(step.hits) for step in selections),
            "passages/kept": sum(len(step.kept or ()) for step in selections),
            "selections/empty": sum(not step.kept for step in selections),
            "evidence/empty": answers if not last.evidence else 0,
            **{f"invalid/{flaw.replace(' ', '_')}": flaws[flaw] for flaw in FLAWS},
        }


def listed(hits: Sequence[Hit]) -> Sequence[Piece]:
    """Numbered passages, each cut separately; where there is no room for all, the last ones go first."""
    pieces = [Data(render_hits([hit], first=number), cuttable=True) for number, hit in enumerate(hits, 1)]
    return pieces or [Control(f"{EMPTY}\n")]
