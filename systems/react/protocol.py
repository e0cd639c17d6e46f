"""ReAct's format: a thought, then an action, then what the environment observes (arXiv 2210.03629).

    Thought 1:                             opened by the environment, never sampled
    thought
    Action 1: Search[query]                -> the environment adds `Observation 1:` with passages on one line
  | Action 1: Finish[answer]               -> the end

A turn ends with its first closing bracket. One with neither action gets a notice, and counts. `parse` is lenient;
`steps` and `valid` are strict. Both look at sampled text alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from common.errors import ConfigError
from envs.protocols.rendering import render_hits
from envs.protocols.step_a_turn import OneMessage, turn_step
from envs.requests import Act, Done, Request
from envs.text import Codec
from envs.types import Action, Episode, Hit, Move, MoveKind, Observation, Step, Turn

FLAWS = ("no action", "unknown action", "several actions", "empty action")  # why a turn is invalid
_KINDS = {"search": "query", "finish": "answer"}
_ACTION = re.compile(r"\b([a-z]+)\s*\[([^\[\]]*)\]", re.IGNORECASE)
_MARKER = re.compile(r"\b(?:Thought|Action|Observation)\s*[\d\s]*:")
_BRACKETS = str.maketrans("[]", "()")

INSTRUCTION = """Answer the question with thoughts, actions and observations in turns. A thought reasons about what is \
known and what is missing. There are two actions: Search[query] looks passages up, Finish[answer] gives the final \
answer, a few words only. Here are two examples.

Question: Where was the author of Emma born?
Thought 1: I need to find the author of Emma first.
Action 1: Search[author of Emma]
Observation 1: Doc 1(Title: Emma) Emma is a novel by Jane Austen.
Thought 2: Emma is by Jane Austen. I need to find where she was born.
Action 2: Search[birthplace of Jane Austen]
Observation 2: Doc 1(Title: Jane Austen) Jane Austen was born in Steventon.
Thought 3: She was born in Steventon, so that is the answer.
Action 3: Finish[Steventon]

Question: Which film came out first, Alien or Jaws?
Thought 1: I need to find when each of the films came out. I begin with Alien.
Action 1: Search[release of Alien]
Observation 1: Doc 1(Title: Alien) Alien is a film of 1979.
Thought 2: Alien came out in 1979. Now I need Jaws.
Action 2: Search[release of Jaws]
Observation 2: Doc 1(Title: Jaws) Jaws is a film of 1975.
Thought 3: 1975 is before 1979, so Jaws came out first.
Action 3: Finish[Jaws]

Now answer this question in the same way."""
NOTICE = "That was no action. Write Search[query] or Finish[answer]."


class ReAct(OneMessage):
    """The ReAct protocol over one tokenizer.

    Args:
        tokenizer: folder or hub id; its chat template writes the prompt, with thinking off where it has that.
        instruction: what the user message says before the question, with its examples; empty for a model trained
            without one.
        notice: what is observed after a turn without an action; trusted text.
        max_turns: turns at most, those without an action counted too; the paper has 7 for HotpotQA.

    Raises:
        ConfigError: there is no turn.
    """

    moves: tuple[MoveKind, ...] = ("search", "conclude")  # nothing is claimed between a search and the next

    def __init__(
        self, tokenizer: Path | str, *, instruction: str = INSTRUCTION, notice: str = NOTICE, max_turns: int = 7
    ) -> None:
        if max_turns < 1:
            raise ConfigError(f"max_turns is {max_turns}; it must be at least 1")
        self.codec = Codec(tokenizer)
        self.instruction, self.notice, self.max_turns = instruction, notice, max_turns

    def next(self, episode: Episode) -> Request | Act | Done:
        if episode.turns and episode.turns[-1].action.kind == "answer":
            return Done("answered")
        if len(episode.turns) == self.max_turns:
            return Done("step_budget")
        return Request(episode, self.codec.control(f"Thought {len(episode.turns) + 1}:"), stop=("]",))

    def parse(self, episode: Episode, turn: Turn) -> Action:
        return action_of(turn.text)

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        before = f"\nObservation {len(episode.turns)}: "
        if action.kind == "query":
            # On one line, so that no passage begins a line of the format.
            return Observation(before, " ".join(render_hits(hits).split()), "\n")
        return Observation() if action.kind == "answer" else Observation(f"{before}{self.notice}\n")

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        return tuple(
            turn_step(
                index,
                turn,
                valid=turn.action.kind != "invalid" and follows_format(turn.text, index + 1),
                claim=turn.action.text if turn.action.kind == "answer" else None,
            )
            for index, turn in enumerate(episode.turns)
        )

    def choices(self, episode: Episode) -> dict[str, int]:
        """Counts of searches, and of reasons of invalid turns; see `evaluation.choices.CountsChoices`."""
        flaws = Counter(turn.action.text for turn in episode.turns if turn.action.kind == "invalid")
        searches = sum(turn.action.kind == "query" for turn in episode.turns)
        return {"searches": searches, **{f"invalid/{flaw.replace(' ', '_')}": flaws[flaw] for flaw in FLAWS}}

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        move, number = moves[0], len(episode.turns) + 1
        thought, text = (self.codec.neutralise(part).translate(_BRACKETS) for part in (move.thought, move.text))
        return f" {thought}\nAction {number}: {'Search' if move.kind == 'search' else 'Finish'}[{text}]"


def action_of(text: str) -> Action:
    """Action of a turn: its only search or answer, in any case and spacing; else `invalid` with the reason."""
    found = _ACTION.findall(text)
    acts = [(_KINDS[name.lower()], payload.strip()) for name, payload in found if name.lower() in _KINDS]
    if len(acts) != 1:
        flaw = "several actions" if acts else "unknown action" if found else "no action"
        return Action("invalid", flaw)
    [(kind, payload)] = acts
    return Action(kind, payload) if payload else Action("invalid", "empty action")


def follows_format(text: str, number: int) -> bool:
    """Whether a turn is a thought, then `Action n:` and one action, each spelt exactly, and nothing else."""
    thought, *rest = _MARKER.split(text)
    names = ["".join(marker.split()) for marker in _MARKER.findall(text)]  # digits may be spelt apart
    action = re.fullmatch(r"\s*(?:Search|Finish)\s*\[[^\[\]]*\]\s*", rest[0]) if rest else None
    return names == [f"Action{number}:"] and action is not None and bool(thought.strip())
