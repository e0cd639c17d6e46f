"""Search-R1's format: a thought, then a search or the answer (arXiv 2503.09516 and its released code).

    <think> thought </think> <search> query </search>     -> the environment adds <information> passages </information>
  | <think> thought </think> <answer> text </answer>      -> the end

A turn with neither gets a notice. After four turns in which it may search the policy has one more, for the answer.
`parse` wants a block that is clear and no thought before it; `steps` and `valid` are strict. Both look at sampled text
alone, but for a `<think>` that the chat template has written before the first turn: it counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from common.errors import ConfigError
from envs.protocols.rendering import render_hits
from envs.protocols.step_a_turn import OneMessage, turn_step
from envs.requests import Act, Done, Request
from envs.text import Codec, tag_pattern
from envs.types import Action, Episode, Hit, Move, MoveKind, Observation, Question, Step, Turn

BLOCKS = {"search": "query", "answer": "answer"}
TAGS = tuple(f"<{slash}{name}>" for name in ("think", "search", "information", "answer") for slash in ("", "/"))
_ANY_TAG = tag_pattern(TAGS)
_BLOCK_TAG = re.compile("|".join(f"</?{name}>" for name in BLOCKS))
_STOPS = tuple(f"</{name}>" for name in BLOCKS)

INSTRUCTION = """Answer the question. Whenever you are given something new, reason about it first, between <think> and \
</think>. Then either search for what you lack, with <search>a query</search>, or give the final answer, a few words \
only, with <answer>the answer</answer>. What a search finds is shown between <information> and </information>. \
You may search several times."""
NOTICE = """
That was neither a search nor an answer. A search is written <search>a query</search>, the final answer \
<answer>the answer</answer>. I try again.
"""


class SearchR1(OneMessage):
    """The Search-R1 protocol over one tokenizer.

    Args:
        tokenizer: folder or hub id; its chat template writes the prompt, with thinking off where it has that.
        instruction: what the user message says before the question; empty for a model trained without one.
        notice: what the environment writes after a turn with neither search nor answer; trusted text.
        searches: turns in which the policy may search, those with neither counted too; one without search follows.

    Raises:
        ConfigError: no turn may search.
    """

    moves: tuple[MoveKind, ...] = ("search", "conclude")  # nothing is claimed between a search and the next

    def __init__(
        self, tokenizer: Path | str, *, instruction: str = INSTRUCTION, notice: str = NOTICE, searches: int = 4
    ) -> None:
        if searches < 1:
            raise ConfigError(f"searches {searches}: at least one turn must be able to search")
        self.codec = Codec(tokenizer, TAGS)
        self.instruction, self.notice, self.searches = instruction, notice, searches

    def asked(self, question: Question) -> str:
        text = question.text.strip()
        return text if text.endswith("?") else f"{text}?"

    def next(self, episode: Episode) -> Request | Act | Done:
        if episode.turns and episode.turns[-1].action.kind == "answer":
            return Done("answered")
        if len(episode.turns) > self.searches:
            return Done("step_budget")
        return Request(episode, (), stop=_STOPS if self._may_search(episode) else ("</answer>",))

    def _may_search(self, episode: Episode) -> bool:
        return len(episode.turns) < self.searches

    def parse(self, episode: Episode, turn: Turn) -> Action:
        action = action_of(turn.text)
        return action if action.kind != "query" or self._may_search(episode) else Action("invalid", "")

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        if action.kind == "query":
            return Observation("\n\n<information>", render_hits(hits).strip(), "</information>\n\n")
        over = action.kind == "answer" or len(episode.turns) > self.searches
        return Observation() if over else Observation(self.notice)

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        return tuple(
            turn_step(
                index,
                turn,
                valid=block_kind(turn.text if index else self.codec.opened + turn.text) == turn.action.kind,
                claim=turn.action.text if turn.action.kind == "answer" else None,
            )
            for index, turn in enumerate(episode.turns)
        )

    def valid(self, episode: Episode) -> bool:
        steps = self.steps(episode)
        order = ["query"] * (len(steps) - 1) + ["answer"]
        return all(step.valid for step in steps) and [step.kind for step in steps] == order

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        tag, neutral = "search" if moves[0].kind == "search" else "answer", self.codec.neutralise
        think = "" if self.codec.opened and not episode.turns else "<think> "
        return f"{think}{neutral(moves[0].thought)} </think>\n<{tag}> {neutral(moves[0].text)} </{tag}>"


def action_of(text: str) -> Action:
    """Action of a turn: its search or its answer, `invalid` where that is not clear.

    Clear is exactly one block in the whole turn, closed, with something in it and no tag inside. So neither of two
    answers counts, and a search that quotes an answer is none.
    """
    tags = list(_BLOCK_TAG.finditer(text))
    if len(tags) == 2 and tags[1].group() == f"</{tags[0].group()[1:]}":
        payload = text[tags[0].end() : tags[1].start()].strip()
        if payload and not _ANY_TAG.search(payload):
            return Action(BLOCKS[tags[0].group()[1:-1]], payload)
    return Action("invalid", "")


def block_kind(text: str) -> str | None:
    """The kind of a turn that follows the format strictly, else None.

    That is `<think> … </think>`, then a search or an answer with something in it, each tag spelt exactly, no other tag
    and only whitespace around the two blocks. Passages follow a search, so an episode of such turns that searches until
    it answers is what the released code takes for well-formed: think, (search, information, think)*, answer.
    """
    cuts = [match.start() for match in _ANY_TAG.finditer(text)]
    action = action_of(text)
    if len(cuts) != 4 or action.kind == "invalid":
        return None
    tag = "search" if action.kind == "query" else "answer"
    before, *parts = text[: cuts[0]], *(text[a:b] for a, b in zip(cuts, [*cuts[1:], None], strict=True))
    if not all(map(str.startswith, parts, ("<think>", "</think>", f"<{tag}>", f"</{tag}>"))):
        return None
    outside = (before, parts[1].removeprefix("</think>"), parts[3].removeprefix(f"</{tag}>"))
    return None if any(map(str.strip, outside)) else action.kind
