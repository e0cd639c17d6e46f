"""ReasonRAG's format: three stages, each with a prompt of its own (arXiv 2505.14069 and its released code).

    reasoning:  thought, "So the next query is" <query> … </query>      -> a search, then grounding
              | thought, "So the answer is" <answer> … </answer>        -> the end
    grounding:  thought, <evidence> … </evidence>, or None in it        -> reasoning
    answering:  thought, <answer> … </answer>                           -> the end; forced in the last iteration

The context is rendered anew in every turn: the stage's instruction as system message, then the question and what the
policy has written so far. Passages are shown in the grounding turn alone; later ones see what it wrote about them. An
iteration is a turn. `parse` is lenient, as the released code is; `steps` and `valid` are strict. Both look at sampled
text alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Literal

from common.errors import ConfigError
from envs.protocols.rendering import render_hits
from envs.protocols.step_a_turn import RendersAnew, turn_step
from envs.requests import Act, Control, Data, Done, Piece, Quoted, Request
from envs.text import Codec
from envs.types import Action, Episode, Move, MoveKind, Step, Turn
from systems.reasonrag.parse import FLAWS, TAGS, ends_in, said

Stage = Literal["reasoning", "grounding", "answering"]

NOTHING = "None"  # what stands in the evidence where the passages do not help
_MAY: dict[Stage, tuple[str, ...]] = {
    "reasoning": ("query", "answer"),
    "grounding": ("evidence",),
    "answering": ("answer",),
}
_TAG_OF_MOVE: dict[MoveKind, str] = {"search": "query", "read": "evidence", "conclude": "answer"}
_STOPS = ("</answer>", "</query>", "</evidence>")

REASONING = """You answer a question with the help of a search tool. Think about what the question takes and what is \
known already; if an earlier thought is wrong, put it right. If something is missing, ask for it in one short query \
that was not asked before, and end with:
{query_marker} <query>the query</query>
If you can answer, do so in a few words, and end with:
{answer_marker} <answer>the answer</answer>"""
GROUNDING = f"""You read passages for a query, the last one in the thoughts. Find what the passages say about it, and \
end with:
<evidence>what they say, in short</evidence>
If they say nothing about it, end with:
<evidence>{NOTHING}</evidence>"""
ANSWERING = """You answer a question from what is known already; nothing more can be searched for. Answer in a few \
words, without explanation, and end with:
{answer_marker} <answer>the answer</answer>"""


class ReasonRAG(RendersAnew):
    """The ReasonRAG protocol over one tokenizer.

    Args:
        tokenizer: folder or hub id; its chat template writes the prompts, with thinking off where it has that.
        reasoning: the system message of the reasoning turns; empty for none. `{query_marker}` and `{answer_marker}` in
            any of the three are replaced.
        grounding: that of the turns that read passages.
        answering: that of the last turn, which may only answer.
        query_marker: words that announce a query; a decision in format has them right before its tag.
        answer_marker: words that announce an answer.
        iterations: turns at most, with the one that may only answer; the paper has 8, and 7 in its tree search.

    Raises:
        ConfigError: there is no iteration, or a marker is empty.
    """

    moves: tuple[MoveKind, ...] = tuple(_TAG_OF_MOVE)

    def __init__(
        self,
        tokenizer: Path | str,
        *,
        reasoning: str = REASONING,
        grounding: str = GROUNDING,
        answering: str = ANSWERING,
        query_marker: str = "So the next query is",
        answer_marker: str = "So the answer is",
        iterations: int = 8,
    ) -> None:
        if iterations < 1 or not (query_marker.strip() and answer_marker.strip()):
            settings = f"iterations {iterations}, query_marker {query_marker!r}, answer_marker {answer_marker!r}"
            raise ConfigError(f"{settings}: there must be an iteration, and no marker may be empty")
        self.codec, self.iterations = Codec(tokenizer, TAGS), iterations
        self.markers = {"query": query_marker.strip(), "answer": answer_marker.strip()}
        systems: dict[Stage, str] = {"reasoning": reasoning, "grounding": grounding, "answering": answering}
        for kind, marker in self.markers.items():
            systems = {stage: text.replace(f"{{{kind}_marker}}", marker) for stage, text in systems.items()}
        self._systems = systems
        added = self.codec.tokenizer.added_tokens_decoder.items()
        self._not_words = {number for number, token in added if token.special and str(token) not in TAGS}

    def stage(self, turns: Sequence[Turn]) -> Stage:
        """Stage of the turn that follows these."""
        if len(turns) >= self.iterations - 1:
            return "answering"
        return "grounding" if turns and turns[-1].action.kind == "query" else "reasoning"

    def next(self, episode: Episode) -> Request | Act | Done:
        turns = episode.turns
        if turns and turns[-1].action.kind == "answer":
            return Done("answered")
        if len(turns) == self.iterations:
            return Done("step_budget")
        return Request(episode, (), stop=_STOPS, context=self._context(episode, self.stage(turns)))

    def _context(self, episode: Episode, stage: Stage) -> tuple[Piece, ...]:
        user, thoughts = "Question: {question}", list[Piece]()
        for turn in episode.turns:
            thoughts += [*([Control(" ")] if thoughts else []), Quoted(self._words(turn))]
        if thoughts:
            user += "\nPrevious Thoughts: {thoughts}"
        if stage == "grounding":
            user += "\n<reference>{passages}</reference>"
        hits = episode.turns[-1].hits if stage == "grounding" else ()
        return self.codec.chat(
            user,
            system=self._systems[stage],
            question=episode.question.text,
            thoughts=thoughts,
            passages=Data(render_hits(hits), cuttable=True),
        )

    def _words(self, turn: Turn) -> tuple[int, ...]:
        """What the policy wrote, without tokens of the chat template, which would end the message that quotes it."""
        return tuple(token for token in turn.action_ids if token not in self._not_words)

    def parse(self, episode: Episode, turn: Turn) -> Action:
        stage, text = self.stage(episode.turns), self.codec.decode(self._words(turn))
        return said(text, {kind: self.markers.get(kind, "") for kind in _MAY[stage]})

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        return tuple(
            turn_step(
                index,
                turn,
                valid=self._is_valid(turn, self.stage(episode.turns[:index])),
                claim=_claim(turn.action),
            )
            for index, turn in enumerate(episode.turns)
        )

    def _is_valid(self, turn: Turn, stage: Stage) -> bool:
        kind = turn.action.kind
        marker = self.markers[kind] if stage == "reasoning" and kind in self.markers else ""
        return kind in _MAY[stage] and ends_in(self.codec.decode(self._words(turn)), kind, marker)

    def valid(self, episode: Episode) -> bool:
        steps = self.steps(episode)
        # The forced answer follows a query where the iterations end with one.
        order = [*islice(cycle(("query", "evidence")), max(0, len(steps) - 1)), "answer"]
        return all(step.valid for step in steps) and [step.kind for step in steps] == order

    def choices(self, episode: Episode) -> dict[str, int]:
        """Counts of the policy's actions, and of reasons of invalid turns; see `evaluation.choices.CountsChoices`."""
        actions = Counter(turn.action.kind for turn in episode.turns)
        flaws = Counter(turn.action.text for turn in episode.turns if turn.action.kind == "invalid")
        found = [turn.action.text.lower() for turn in episode.turns if turn.action.kind == "evidence"]
        return {
            "queries": actions["query"],
            "evidence": actions["evidence"],
            "evidence/nothing": found.count(NOTHING.lower()),
            **{f"invalid/{flaw.replace(' ', '_')}": flaws[flaw] for flaw in FLAWS},
        }

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        move, tag = moves[0], _TAG_OF_MOVE[moves[0].kind]
        thought, text = self.codec.neutralise(move.thought), self.codec.neutralise(move.text)
        return " ".join(filter(None, (thought, self.markers.get(tag, ""), f"<{tag}> {text} </{tag}>")))


def _claim(action: Action) -> str:
    """What a step asserts: its evidence or its answer."""
    found = action.kind == "evidence" and action.text.lower() != NOTHING.lower()
    return action.text if found or action.kind == "answer" else ""
