"""Small real formats, one of each kind that a protocol can be: what the conformance suite and the oracle are tried on.

In all of them a thought stands before a tagged text: `<find>` a query, `<note>` a claim from the passages, `<know>` a
claim from memory, `<say>` the answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from envs.protocols.rendering import render_hits
from envs.requests import Act, Control, Data, Done, Piece, Quoted, Request
from envs.text import Codec
from envs.types import Action, Episode, Hit, Move, MoveKind, Observation, Question, Step, Turn
from tests.tiny import byte_tokenizer

_TAG: dict[MoveKind, str] = {"search": "find", "read": "note", "recall": "know", "conclude": "say"}
_KIND = {"find": "query", "note": "note", "know": "know", "say": "answer"}
TAGS = tuple(f"<{slash}{name}>" for name in (*_KIND, "step", "docs") for slash in ("", "/"))
_BLOCK = re.compile(r"<(find|note|know|say)>(.*?)</\1>", re.DOTALL)
_WHOLE = re.compile(r"[^<>]*<(find|note|know|say)>[^<>]*[^<>\s][^<>]*</\1>\s*")


class OneMove:
    """One move a turn, so that a turn is a step; any move can be written."""

    moves: tuple[MoveKind, ...] = ("search", "read", "recall", "conclude")
    stop = ("</find>", "</note>", "</know>", "</say>")

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        self.codec = Codec(tokenizer or byte_tokenizer(TAGS), TAGS)

    def prompt(self, question: Question) -> tuple[int, ...]:
        return self.codec.encode([Control("Q: "), Data(question.text), Control("\n")])

    def next(self, episode: Episode) -> Request | Act | Done:
        if episode.turns and episode.turns[-1].action.kind == "answer":
            return Done("answered")
        if episode.turns and episode.turns[-1].finish == "eos":
            return Done("malformed")
        return self.request(episode)

    def request(self, episode: Episode) -> Request:
        return Request(episode, self.codec.control("\n>"), self.stop)

    def parse(self, episode: Episode, turn: Turn) -> Action:
        block = _BLOCK.search(turn.text)
        return Action(_KIND[block[1]], block[2].strip()) if block and block[2].strip() else Action("invalid", "")

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        return Observation("<docs>", render_hits(hits), "</docs>") if action.kind == "query" else Observation()

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        return tuple(self._step(index, turn) for index, turn in enumerate(episode.turns))

    def _step(self, index: int, turn: Turn) -> Step:
        kind, text = turn.action.kind, turn.action.text
        claim = text if kind != "query" else "" if "read" in self.moves else None
        return Step(
            kind,
            kind in _KIND.values() and bool(_WHOLE.fullmatch(turn.text)),
            ((index, 0, len(turn.action_ids)),),
            query=text if kind == "query" else "",
            claim=claim,
            said=turn.text,
            hits=turn.hits,
            recall=kind == "know",
        )

    def valid(self, episode: Episode) -> bool:
        return episode.status == "answered" and all(step.valid for step in self.steps(episode))

    def answer(self, episode: Episode) -> str:
        last = episode.turns[-1].action if episode.turns else Action("none", "")
        return last.text if last.kind == "answer" else ""

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        return self.written(moves[0])

    def written(self, move: Move) -> str:
        tag = _TAG[move.kind]
        return f"{self.codec.neutralise(move.thought)}<{tag}>{self.codec.neutralise(move.text)}</{tag}>"


class SearchOnly(OneMove):
    """No claims, as in Search-R1: passages are read in silence. Parsing and notices depend on the episode.

    A query that was searched for before, or one after `searches` of them, finds nothing and gets a notice.
    """

    moves: tuple[MoveKind, ...] = ("search", "conclude")
    stop = ("</find>", "</say>")

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None = None, *, searches: int = 8) -> None:
        super().__init__(tokenizer)
        self.searches = searches

    def parse(self, episode: Episode, turn: Turn) -> Action:
        action = super().parse(episode, turn)
        past = [turn.action.text for turn in episode.turns if turn.action.kind == "query"]
        if action.kind == "query" and (action.text in past or len(past) == self.searches):
            return Action("refused", action.text)
        return action if action.kind in ("query", "answer") else Action("invalid", "")

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        if action.kind != "refused":
            return super().observe(episode, action, hits)
        again = action.text in {turn.action.text for turn in episode.turns[:-1]}
        return Observation("You searched for that before." if again else "You cannot search any more.")


class TwoAgents(OneMove):
    """A frozen reader writes the claim after each search of the agent that is trained."""

    moves: tuple[MoveKind, ...] = ("search", "read", "conclude")

    def request(self, episode: Episode) -> Request:
        reads = bool(episode.turns) and episode.turns[-1].action.kind == "query"
        agent, stop = ("reader", ("</note>",)) if reads else ("policy", ("</find>", "</say>"))
        return Request(episode, self.codec.control("\n>"), stop, agent=agent, trains=not reads)


class Notebook(OneMove):
    """Re-renders its context every turn, as ReasonRAG does: passages are seen once, then only what was said stays."""

    moves: tuple[MoveKind, ...] = ("search", "read", "conclude")

    def request(self, episode: Episode) -> Request:
        context: list[Piece] = [Control("Q: "), Data(episode.question.text)]
        for turn in episode.turns:
            context += [Control("\nThought: "), Quoted(turn.action_ids)]
        if episode.turns and episode.turns[-1].hits:
            context += [Control("\nPassages: "), Data(render_hits(episode.turns[-1].hits), cuttable=True)]
        return Request(episode, self.codec.control("\n>"), self.stop, context=tuple(context))

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        return Observation()


class ForcedSearch(OneMove):
    """The first turn is given: the question is searched for, and the policy only scores that."""

    moves: tuple[MoveKind, ...] = ("search", "read", "conclude")

    def request(self, episode: Episode) -> Request:
        request = super().request(episode)
        if episode.turns:
            return request
        ids = self.codec.control(self.written(Move("search", episode.question.text, "I ask.")))
        return replace(request, forced_ids=ids)


class Spanning(OneMove):
    """A turn holds several steps and a step may span two turns, as in HiPRAG.

    The environment opens `<note>` after the passages, so a turn begins with the claim of the step before. Then come
    steps from memory, `<step>` thought `<know>` claim `</know>`, and at last a search or the answer.
    """

    stop = ("</find>", "</say>")

    def parse(self, episode: Episode, turn: Turn) -> Action:
        for block in _BLOCK.finditer(turn.text):
            if block[1] in ("find", "say"):
                return Action(_KIND[block[1]], block[2].strip()) if block[2].strip() else Action("invalid", "")
        return Action("invalid", "")

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        if action.kind == "query":
            return Observation("<docs>", render_hits(hits), "</docs><note>")
        return Observation("" if action.kind == "answer" else "That was no step.")

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        steps: list[Step] = []
        for index, turn in enumerate(episode.turns):
            claims = index > 0 and episode.turns[index - 1].action.kind == "query"
            texts = _segments(turn.text, claims)
            borders = [sum(map(len, texts[:number])) for number in range(len(texts) + 1)]
            tokens = [*self.codec.token_index(turn.action_ids, borders[:-1]), len(turn.action_ids)]
            for number, (text, start, end) in enumerate(zip(texts, tokens[:-1], tokens[1:], strict=True)):
                last = number == len(texts) - 1
                if claims and number == 0:
                    steps[-1] = _with_claim(steps[-1], text, (index, start, end))
                elif start < end:
                    steps.append(_segment(text, turn.action if last else Action("none", ""), (index, start, end), turn))
        return tuple(steps)

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        return "".join(
            f"{self.codec.neutralise(move.text)}</note>" if move.kind == "read" else f"<step>{self.written(move)}"
            for move in moves
        )


def _segments(text: str, claims: bool) -> list[str]:
    """The texts of a turn's steps: first, where it `claims`, the end of the step before. Joined they are the turn."""
    head, found, rest = text.partition("</note>") if claims else ("", "", text)
    if claims and not found:
        head, rest = text, ""
    first, *others = rest.split("<step>")
    segments = [first, *(f"<step>{other}" for other in others)]
    if len(segments) > 1 and not first.strip():
        segments = [first + segments[1], *segments[2:]]
    return [head + found, *segments] if claims else segments


def _with_claim(step: Step, text: str, span: tuple[int, int, int]) -> Step:
    claim = text.removesuffix("</note>").strip()
    valid = step.valid and text.endswith("</note>") and bool(claim) and "<" not in claim
    spans = (*step.spans, span) if span[1] < span[2] else step.spans
    return Step("search", valid, spans, query=step.query, claim=claim, said=step.said + text, hits=step.hits)


def _segment(text: str, action: Action, span: tuple[int, int, int], turn: Turn) -> Step:
    """A step of its own: a search or the answer, which `action` is, else a claim from memory or nothing valid."""
    whole = _WHOLE.fullmatch(text.strip().removeprefix("<step>"))
    if action.kind == "query":
        valid = whole is not None and whole[1] == "find"
        return Step("search", valid, (span,), query=action.text, said=text, hits=turn.hits)
    if action.kind == "answer":
        return Step("answer", whole is not None and whole[1] == "say", (span,), claim=action.text, said=text)
    known = _BLOCK.search(text)
    if whole and known and known[1] == "know":
        return Step("memory", True, (span,), claim=known[2].strip(), said=text, recall=True)
    return Step("invalid", False, (span,), said=text)
