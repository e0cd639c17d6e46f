"""Search-o1 (Li et al. 2025, arXiv 2501.05366): reasoning that searches, and a second agent that reads the passages.

    reasoning <|begin_search_query|> query <|end_search_query|>
    <|begin_search_result|> what the second agent found <|end_search_result|>
    reasoning \\boxed{answer}

The second agent sees the query, the passages and the reasoning in short; the first never sees a passage. A repeated
query, or one when no search is left, gets a fixed notice in place of a result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common.errors import ConfigError
from envs.protocols.rendering import render_hits
from envs.protocols.step_a_turn import RendersAnew, plain_text, turn_step
from envs.requests import Act, Control, Data, Done, Piece, Quoted, Request
from envs.text import Codec
from envs.types import Action, Document, Episode, Hit, Move, MoveKind, Step, Turn

TAGS = tuple(f"<|{side}_search_{name}|>" for name in ("query", "result") for side in ("begin", "end"))
ASK, ASKED, RESULT, END_RESULT = TAGS
READER = "reason_in_documents"
FOUND = "Final information:"
REPEATED = "You have searched for this before; the result stands above."
SPENT = "No search is left. Answer with what you know."
LATEST = 4  # steps of the reasoning that the second agent sees besides the first and those that search
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_BOXED = re.compile(r"\\\s*boxed\s*\{")

INSTRUCTION = f"""Answer the question. Think step by step, and search for every fact that you are not sure of: write \
{ASK} a short query {ASKED}, and what was found is given to you between {RESULT} and {END_RESULT}. You have \
{{searches}} searches. When you know the answer, write it in a few words as \\boxed{{...}}."""
READING = f"""Read the passages and find what helps with the search query. Write "{FOUND}" and then that information \
in one short sentence, or that nothing helpful was found."""


class SearchO1(RendersAnew):
    """Two agents: `policy` reasons and searches, `reason_in_documents` condenses what was found.

    Args:
        tokenizer: folder or hub id; its chat template writes the prompts.
        instruction: what the first agent's message says first; `{searches}` is their number.
        reading: what the second agent's message says first.
        searches: at most; the paper has 10 for questions of several hops and 5 for simple ones.
        turns: of the first agent at most.
        page_characters: of a passage that the second agent sees.
        trains_reader: whether the second agent's turns are trained, as in a warm-up of both.

    Raises:
        ConfigError: a number is below 1.
    """

    moves: tuple[MoveKind, ...] = ("search", "read", "conclude")

    def __init__(
        self,
        tokenizer: Path | str,
        *,
        instruction: str = INSTRUCTION,
        reading: str = READING,
        searches: int = 10,
        turns: int = 15,
        page_characters: int = 3000,
        trains_reader: bool = False,
    ) -> None:
        if min(searches, turns, page_characters) < 1:
            settings = f"searches {searches}, turns {turns}, page_characters {page_characters}"
            raise ConfigError(f"{settings}: each must be at least 1")
        self.codec = Codec(tokenizer, TAGS)
        self.searches, self.turns, self.page_characters = searches, turns, page_characters
        self.trains_reader = trains_reader
        self.user = f"{instruction.replace('{searches}', str(searches))}\n\nQuestion: {{question}}"
        self.reading = f"{reading}\n\nReasoning:\n{{reasoning}}\n\nSearch query: {{query}}\n\nPassages:\n{{passages}}"

    def next(self, episode: Episode) -> Request | Act | Done:
        if episode.turns:
            last = episode.turns[-1]
            if last.action.kind == "query":
                return self._read(episode, last)
            if last.action.kind == "answer":
                return Done("answered")
            if last.action.kind == "invalid" and last.finish == "eos":
                return Done("malformed")  # the message ended without a search and without an answer
        if sum(turn.agent != READER for turn in episode.turns) == self.turns:
            return Done("step_budget")
        context = self.codec.chat(self.user, question=episode.question.text)
        for turn in episode.turns:
            context += self._shown(turn)
        return Request(episode, (), stop=(ASKED,), context=context)

    def _shown(self, turn: Turn) -> tuple[Piece, ...]:
        """A turn as the first agent sees it: its own words, the second agent's findings, a notice."""
        notice = {"repeated": REPEATED, "refused": SPENT}.get(turn.action.kind)
        if turn.action.kind == "read":
            return Control(f"\n{RESULT}"), Data(turn.action.text), Control(f"{END_RESULT}\n")
        if notice is not None:
            return Quoted(turn.action_ids), Control(f"\n{RESULT}{notice}{END_RESULT}\n")
        return (Quoted(turn.action_ids),)

    def _read(self, episode: Episode, asked: Turn) -> Request:
        """The second agent's turn, in a context of its own."""
        pages = [replace(hit, document=self._page(hit)) for hit in asked.hits]
        context = self.codec.chat(
            self.reading,
            reasoning="\n".join(abbreviated(reasoning_steps(episode.turns))),
            query=asked.action.text,
            passages=Data(render_hits(pages), cuttable=True),
        )
        return Request(episode, (), stop=(), agent=READER, context=context, trains=self.trains_reader)

    def _page(self, hit: Hit) -> Document:
        return replace(hit.document, text=hit.document.text[: self.page_characters])

    def parse(self, episode: Episode, turn: Turn) -> Action:
        if turn.agent == READER:
            text = plain_text(self.codec, turn)
            return Action("read", text.partition(FOUND)[2].strip() or text)
        before, closed, _ = turn.text.partition(ASKED)
        if closed:
            query = before.rpartition(ASK)[2].strip() if ASK in before else ""
            past = {_key(turn.action.text) for turn in episode.turns if turn.action.kind == "query"}
            if not query:
                return Action("invalid", "")
            if _key(query) in past:
                return Action("repeated", query)
            searches = sum(turn.action.kind == "query" for turn in episode.turns)
            return Action("query" if searches < self.searches else "refused", query)
        answer = boxed(turn.text)
        return Action("answer", answer) if answer else Action("invalid", "")

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        return tuple(
            turn_step(
                index,
                turn,
                valid=self._is_valid(turn),
                claim=turn.action.text if turn.action.kind in ("read", "answer") else "",
            )
            for index, turn in enumerate(episode.turns)
        )

    def _is_valid(self, turn: Turn) -> bool:
        tags = [tag for tag in TAGS for _ in range(turn.text.count(tag))]
        if turn.action.kind == "query":
            return tags == [ASK, ASKED]
        return turn.action.kind in ("read", "answer") and bool(turn.action.text) and not tags

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        move, eos = moves[0], self.codec.tokenizer.eos_token
        thought, text = self.codec.neutralise(move.thought), self.codec.neutralise(move.text)
        if move.kind == "search":
            return f"{thought} {ASK} {text} {ASKED}"
        if move.kind == "read":
            return f"{thought} {FOUND} {text}{eos}"
        return f"{thought} \\boxed{{{text}}}{eos}"


def boxed(text: str) -> str:
    """Contents of the last `\\boxed{…}`, braces inside it included; empty without one that is closed.

    One `\\text{…}` around all of it goes: models that were trained on mathematics write it.
    """
    for opening in reversed(list(_BOXED.finditer(text))):
        depth = 1
        for place in range(opening.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if not depth:
                inside = text[opening.end() : place].strip()
                wrapped = _TEXT.fullmatch(inside)
                return wrapped[1].strip() if wrapped else inside
    return ""


def reasoning_steps(turns: Sequence[Turn]) -> list[tuple[str, bool]]:
    """The first agent's reasoning so far, by paragraph, and whether that searches or holds what was found."""
    steps: list[tuple[str, bool]] = []
    for turn in turns:
        if turn.action.kind == "read":
            steps.append((f"Found: {turn.action.text}", True))
            continue
        for paragraph in filter(str.strip, turn.text.split("\n\n")):
            searches = ASK in paragraph
            steps.append((" ".join(paragraph.replace(ASK, "Search:").replace(ASKED, "").split()), searches))
    return steps


def abbreviated(steps: Sequence[tuple[str, bool]]) -> list[str]:
    """The first step, the last four and those that search; an ellipsis in place of others."""
    kept: list[str] = []
    for number, (text, searches) in enumerate(steps):
        if number == 0 or searches or number >= len(steps) - LATEST:
            kept.append(text)
        elif kept[-1] != "...":
            kept.append("...")
    return kept


def _key(query: str) -> str:
    """Queries that differ in case and spacing alone are the same."""
    return " ".join(query.lower().split())
