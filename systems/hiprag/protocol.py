"""HiPRAG's format: steps with and without a search in one chain of thought (methods after its paper and released code).

    <think><step><reasoning>                    opened by the environment, never sampled (`<think>` by some templates)
    thought</reasoning><search>query</search>   -> the environment adds <context> passages </context> <conclusion>
    claim</conclusion></step>                   a search step ends in the turn after its search
    <step><reasoning>thought</reasoning><conclusion>claim</conclusion></step>       a step from memory
    </think><answer>text</answer>               -> the end

A turn ends with the first `</search>` or `</answer>`; one without either gets a notice. So a turn may hold several
steps, and a step may span two turns. `parse` is lenient; `steps` and `valid` are strict, and read by one parse, of what
the policy wrote alone (`systems.hiprag.parse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envs.protocols.rendering import render_hits
from envs.protocols.step_a_turn import OneMessage
from envs.requests import Act, Done, Request
from envs.text import Codec
from envs.types import Action, Episode, Hit, Move, MoveKind, Observation, Step, Turn
from systems.hiprag.parse import STOPS, TAGS, Part, read_action, read_parts, well_formed

INSTRUCTION = """Answer the question step by step. First think between <think> and </think>, in steps between <step> \
and </step>, then give the final answer, a few words only, between <answer> and </answer>.
A step begins with a short thought between <reasoning> and </reasoning>. If you know what it asks for, end it with \
<conclusion>what you conclude</conclusion>. If you do not, search: <search>one simple question</search>. Passages come \
back between <context> and </context>; then write what you conclude from them, and close with </conclusion>.
Search only for what you do not know, and state only what you are sure of."""
NOTICE = "\nThat was no valid action: a turn ends with a search or with the final answer. I try again.\n"


class HiPRAG(OneMessage):
    """The HiPRAG protocol over one tokenizer.

    `valid` is F(T), 1 or 0. Text after the final answer is tolerated by it, as in the paper, but makes the answer an
    invalid step, so it is counted. A conclusion must not be empty, for an empty one cannot be judged, and `<think>`
    must not be written again: both are stricter than the paper.

    Args:
        tokenizer: folder or hub id; its chat template writes the prompt, with thinking off where it has that.
        instruction: what the user message says before the question; empty for a model trained without one.
        search_turns: turns that may search; one more may answer. A search in that last turn is refused.
        notice: what the environment writes after a turn without an action.
        sums_up: whether a teacher's last step sums up, without a search, before it answers.
    """

    moves: tuple[MoveKind, ...] = ("search", "read", "recall", "conclude")

    def __init__(
        self,
        tokenizer: Path | str,
        *,
        instruction: str = INSTRUCTION,
        search_turns: int = 4,
        notice: str = NOTICE,
        sums_up: bool = False,
    ) -> None:
        self.codec = Codec(tokenizer, TAGS)
        self.instruction, self.search_turns, self.notice = instruction, search_turns, notice
        self.sums_up = sums_up

    def next(self, episode: Episode) -> Request | Act | Done:
        if not episode.turns:
            scaffold = "<think><step><reasoning>".removeprefix(self.codec.opened)
            return Request(episode, self.codec.control(scaffold), stop=STOPS)
        if episode.turns[-1].action.kind == "answer":
            return Done("answered")
        if len(episode.turns) > self.search_turns:
            return Done("step_budget")
        return Request(episode, (), stop=STOPS)

    def parse(self, episode: Episode, turn: Turn) -> Action:
        action = read_action(turn.text)
        late = action.kind == "query" and len(episode.turns) >= self.search_turns
        return Action("refused", action.text) if late else action

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        if action.kind == "query":
            return Observation("\n<context>", render_hits(hits), "</context>\n<conclusion>")
        over = action.kind == "answer" or len(episode.turns) > self.search_turns
        return Observation("" if over else self.notice)

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        parts = read_parts(episode.turns)
        written = [part.written() for part in parts]
        spans: list[list[tuple[int, int, int]]] = [[] for _ in parts]
        for number, turn in enumerate(episode.turns):
            places = [(index, ranges[number][0]) for index, ranges in enumerate(written) if number in ranges]
            first = self.codec.token_index(turn.action_ids, [start for _, start in places])
            for (index, _), start, end in zip(places, first, [*first[1:], len(turn.action_ids)], strict=True):
                if start < end:
                    spans[index].append((number, start, end))
        steps = [self._step(episode, part, tuple(own)) for part, own in zip(parts, spans, strict=True)]
        return tuple(step for step in steps if step.said or step.spans)

    def _step(self, episode: Episode, part: Part, spans: tuple[tuple[int, int, int], ...]) -> Step:
        turn = None if part.acting_turn is None else episode.turns[part.acting_turn]
        return Step(
            part.kind,
            part.valid,
            spans,
            query=turn.action.text if turn and part.kind == "search" else "",
            claim=turn.action.text if turn and part.kind == "answer" else part.conclusion,
            said="".join(episode.turns[turn].text[a:b] for turn, (a, b) in part.written().items()),
            hits=turn.hits if turn else (),
            recall=part.kind == "statement",
        )

    def valid(self, episode: Episode) -> bool:
        return well_formed(read_parts(episode.turns))

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        """All moves up to the search or the answer; a thought before a claim that was read has no place.

        A conclusion that was opened is closed first. An answer at once gets a step that thinks. Where the teacher sums
        up, so does every answer, and the thought of the last claim stands in it: it can be judged alone.
        """
        opened = "<reasoning>" if not episode.turns else ""
        if episode.turns and episode.turns[-1].action.kind == "query":
            opened = "<conclusion>"
        written: list[str] = []
        last = ""
        for move in moves:
            text, thought = self.codec.neutralise(move.text), self.codec.neutralise(move.thought)
            if move.kind == "conclude" and self.sums_up:
                thought = f"{thought} {last}".strip()
            last = thought
            if opened == "<conclusion>":
                written.append(f"{text if move.kind == 'read' else thought or text}</conclusion></step>\n")
                opened = ""
                if move.kind == "read":
                    continue
            begun = "" if opened else "<step><reasoning>"
            if move.kind == "search":
                written.append(f"{begun}{thought}</reasoning><search>{text}</search>")
            if move.kind in ("read", "recall") or (move.kind == "conclude" and (opened or self.sums_up)):
                written.append(f"{begun}{thought}</reasoning><conclusion>{text}</conclusion></step>\n")
            if move.kind == "conclude":
                written.append(f"</think><answer>{text}</answer>")
            opened = ""
        return "".join(written)
