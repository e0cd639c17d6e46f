"""Auto-RAG's format: a dialogue in which the user's further messages are what was retrieved (arXiv 2411.19443).

    user:       Question: question
    assistant:  thought
                Query: query                 (later `Refined Query: query`)
    user:       Retrieved Document_1: passages that no message has shown yet
    assistant:  thought
                Final Answer: answer         -> the end

After `max_iter` replies that may search, one more may only answer. In the parametric phase the model itself writes a
document for each further query, in a context of its own, and it takes the place of passages. A loop in which even the
last reply asks is `exhausted`. A reply with neither line gets a notice, and counts. Only what the model wrote is
parsed: the first of the two lines decides.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path

from common.errors import ConfigError
from envs.protocols.rendering import render_hits
from envs.protocols.step_a_turn import Format, plain_text, turn_step
from envs.requests import Act, Control, Data, Done, Quoted, Request
from envs.text import Codec
from envs.types import Action, Episode, Hit, Move, MoveKind, Observation, Question, Step, Turn

RETRIEVED = "Retrieved Document"
_LINE = re.compile(r"\b(Refined Query|Query|Final Answer)[ \t]*:([^\n]*)")

INSTRUCTION = """Answer the question by retrieving passages, as often as it takes. In each reply first think: extract \
what is useful from what was retrieved, and say what is missing. If something is missing, end with a line that begins \
with "Query:" and holds a simple question to search for; if what was retrieved is not enough, end with a better one in \
a line that begins with "Refined Query:". If you know enough, end with a line that begins with "Final Answer:" and \
holds the answer, a few words only."""
WRITING = """Write one short passage of an encyclopedia that answers the question.

Question: Who wrote Emma?
Passage: Emma is a novel by Jane Austen, published in 1815.

Question: What is the capital of Portugal?
Passage: Lisbon is the capital and the largest city of Portugal.

Question: When did the film Jaws come out?
Passage: Jaws is an American thriller film, which came out in 1975.

Question: Where was Ada Lovelace born?
Passage: Ada Lovelace was an English mathematician, who was born in London.

Question: {query}
Passage:"""
NOTICE = 'That was neither a query nor an answer. End with a line "Query:" or "Final Answer:".'


class AutoRAG(Format):
    """The Auto-RAG protocol over one tokenizer.

    Args:
        tokenizer: folder or hub id; its chat template writes the dialogue.
        instruction: the system message; empty for none.
        notice: the message after a reply with neither a query nor an answer; trusted text.
        max_iter: replies that may search, those with neither line counted too; with 0 the first must answer.
        passages: of a query, shown at most: the first that were not shown before.
        parametric: documents that the model itself writes once it may not search any more; the paper has 5.
        document_tokens: of such a document at most.

    Raises:
        ConfigError: a number is out of range, or the chat template takes no dialogue.
    """

    moves: tuple[MoveKind, ...] = ("search", "conclude")  # what was read is a thought, no claim of its own

    def __init__(
        self,
        tokenizer: Path | str,
        *,
        instruction: str = INSTRUCTION,
        notice: str = NOTICE,
        max_iter: int = 10,
        passages: int = 2,
        parametric: int = 0,
        document_tokens: int = 200,
    ) -> None:
        if min(max_iter, parametric) < 0 or min(passages, document_tokens) < 1:
            raise ConfigError(
                f"max_iter {max_iter} and parametric {parametric} must not be negative, passages {passages} and "
                f"document_tokens {document_tokens} at least 1"
            )
        self.codec = Codec(tokenizer)
        self.instruction, self.notice, self.max_iter, self.passages = instruction, notice, max_iter, passages
        self.parametric, self.document_tokens = parametric, document_tokens
        self._ask, self._reply = self.codec.between_replies

    def prompt(self, question: Question) -> tuple[int, ...]:
        return self.codec.encode(
            self.codec.chat("Question: {question}", system=self.instruction, question=question.text)
        )

    def next(self, episode: Episode) -> Request | Act | Done:
        replies, last = _replies(episode), episode.turns[-1] if episode.turns else None
        kind = last.action.kind if last else ""
        if last and kind == "elicit":
            context = self.codec.chat(WRITING, query=last.action.text)
            most = self.document_tokens
            return Request(episode, (), stop=("\n",), context=context, trains=False, max_tokens=most)
        if last and kind == "document":
            dialogue = Quoted(replace(episode, turns=replies).context())
            context = (dialogue, Data(last.action.text, cuttable=True), Control(self._reply))
            return Request(episode, (), stop=(RETRIEVED,), context=context)
        if kind == "answer":
            return Done("answered")
        if len(replies) > self.max_iter + self.parametric:
            return Done("exhausted")
        return Request(episode, (), stop=(RETRIEVED,))

    def parse(self, episode: Episode, turn: Turn) -> Action:
        if episode.turns and episode.turns[-1].action.kind == "elicit":
            return Action("document", plain_text(self.codec, turn))
        action = action_of(plain_text(self.codec, turn))
        past = len(_replies(episode)) - self.max_iter
        if action.kind != "query" or past < 0:
            return action
        return Action("elicit" if past < self.parametric else "refused", action.text)

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        if action.kind in ("answer", "document", "refused") or isinstance(self.next(episode), Done):
            return Observation()
        ask, end = self._ask, self.codec.control(self._ask)[:1]
        if episode.turns[-1].action_ids[-1:] == end:  # the model ended its message itself
            ask = ask.removeprefix(self.codec.decode(end))
        if action.kind == "invalid":
            return Observation(f"{ask}{self.notice}{self._reply}")
        asked = sum(turn.action.kind in ("query", "elicit") for turn in episode.turns)
        before = f"{ask}{RETRIEVED}_{asked}: "
        if action.kind == "elicit":
            return Observation(before)
        return Observation(before, render_hits(self.shown(episode)), self._reply)

    def shown(self, episode: Episode) -> list[Hit]:
        """Passages of the last query that are shown after it."""
        seen, new = set[str](), list[Hit]()
        for turn in episode.turns:
            new = unseen(turn.hits, seen, self.passages)
            seen |= {hit.document.id for hit in new}
        return new

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        return tuple(
            turn_step(
                index,
                turn,
                valid=self._is_valid(turn),
                claim=turn.action.text if turn.action.kind == "answer" else None,
                dropped=turn.action.kind == "document",  # no oracle can judge it
            )
            for index, turn in enumerate(episode.turns)
        )

    def _is_valid(self, turn: Turn) -> bool:
        if turn.action.kind == "document":
            return bool(turn.action.text)
        return turn.action.kind in ("query", "elicit", "answer") and follows_format(plain_text(self.codec, turn))

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        move, searched = moves[0], any(turn.action.kind == "query" for turn in episode.turns)
        name = "Final Answer" if move.kind == "conclude" else "Refined Query" if searched else "Query"
        thought, text = self.codec.neutralise(move.thought), self.codec.neutralise(move.text)
        return f"{thought}\n{name}: {text}{self.codec.tokenizer.eos_token}"


def action_of(text: str) -> Action:
    """`query` or `answer`, by the first line of the two kinds; `invalid` without one, or with nothing in it."""
    line = _LINE.search(text)
    if line is None or not line[2].strip():
        return Action("invalid", "")
    return Action("answer" if line[1] == "Final Answer" else "query", line[2].strip())


def follows_format(text: str) -> bool:
    """Whether a reply is a thought, then one line of the two kinds, and nothing else."""
    lines = list(_LINE.finditer(text))
    return len(lines) == 1 and bool(text[: lines[0].start()].strip()) and not text[lines[0].end() :].strip()


def unseen(hits: Sequence[Hit], seen: Container[str], most: int) -> list[Hit]:
    """The first passages that were not shown before, `most` at most."""
    return [hit for hit in hits if hit.document.id not in seen][:most]


def _replies(episode: Episode) -> list[Turn]:
    """The turns of the dialogue, without documents that the model wrote."""
    return [turn for turn in episode.turns if turn.action.kind != "document"]
