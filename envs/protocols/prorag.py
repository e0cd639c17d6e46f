"""ProRAG's format: scaffolded steps, one a turn (arXiv 2601.21912; facts in the paper and its released code).

    <step>            opened by the environment, never sampled
    thought </step>
    <subquery> query </subquery>      -> the environment adds <retrieval> passages </retrieval>
  | <subanswer> text </subanswer>
  | <answer> text </answer>           -> the end

A whole episode is (query, sub-answer)^n, answer. `parse` is lenient, so that a sloppy policy still gets its passages
and its answer is read; `steps` and `valid` are strict, and look at sampled text alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from envs.protocols.rendering import render_hits
from envs.protocols.step_a_turn import OneMessage, turn_step
from envs.requests import Act, Done, Request
from envs.text import Codec, tag_pattern
from envs.types import Action, Episode, Hit, Move, MoveKind, Observation, Step, Turn

PAYLOAD = {"query": "subquery", "subanswer": "subanswer", "answer": "answer"}
TAGS = tuple(
    f"<{slash}{name}>" for name in ("step", "subquery", "retrieval", "subanswer", "answer") for slash in ("", "/")
)
_TAG_OF_MOVE: dict[MoveKind, str] = {"search": "subquery", "read": "subanswer", "conclude": "answer"}
_KIND = {tag: kind for kind, tag in PAYLOAD.items()}
_ANY_TAG = tag_pattern(TAGS)
_STOPS = tuple(f"</{tag}>" for tag in PAYLOAD.values())
_FIRST_STOP = re.compile("|".join(re.escape(stop) for stop in _STOPS))

INSTRUCTION = """Answer the question step by step. A search tool finds passages for you. \
Every step begins with <step>, holds one short thought and ends with </step>; right after it comes exactly one of these:
<subquery>one simple question to search for</subquery>
<subanswer>the answer to your last search, read from the passages</subanswer>
<answer>the final answer, a few words only</answer>
Passages come back between <retrieval> and </retrieval>. After each search give its <subanswer>; when all parts are \
known, give the <answer>."""


class ProRAG(OneMessage):
    """The ProRAG protocol over one tokenizer.

    Args:
        tokenizer: folder or hub id; its chat template writes the prompt, with thinking off where it has that.
        instruction: what the user message says before the question; empty for a model trained without one.
        min_hops: searches that a valid episode needs; the paper's purpose needs 1, its released code accepts 0.
    """

    moves: tuple[MoveKind, ...] = tuple(_TAG_OF_MOVE)

    def __init__(self, tokenizer: Path | str, *, instruction: str = INSTRUCTION, min_hops: int = 1) -> None:
        self.codec = Codec(tokenizer, TAGS)
        self.instruction = instruction
        self.min_hops = min_hops

    def next(self, episode: Episode) -> Request | Act | Done:
        scaffold = "\n<step>\n" if episode.turns else "<step>\n"
        if episode.turns:
            last = episode.turns[-1]
            if last.action.kind == "answer":
                return Done("answered")
            if last.finish == "eos":  # the policy ended its message without an answer
                return Done("malformed")
        return Request(episode, self.codec.control(scaffold), stop=_STOPS)

    def parse(self, episode: Episode, turn: Turn) -> Action:
        stop = _FIRST_STOP.search(turn.text)
        if stop is None:
            return Action("invalid", "")
        tag = stop.group().strip("</>")
        _, opening, payload = turn.text[: stop.start()].rpartition(f"<{tag}>")
        if not opening or (tag == "subquery" and not payload.strip()):
            return Action("invalid", "")
        return Action(_KIND[tag], payload.strip())

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        if action.kind != "query":
            return Observation()
        return Observation("\n<retrieval>\n", render_hits(hits), "</retrieval>")

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        return tuple(
            turn_step(
                index,
                turn,
                valid=step_kind(turn.text) == turn.action.kind,
                claim={"query": "", "subanswer": turn.action.text, "answer": turn.action.text}.get(turn.action.kind),
            )
            for index, turn in enumerate(episode.turns)
        )

    def valid(self, episode: Episode) -> bool:
        steps = self.steps(episode)
        hops = len(steps) // 2
        order = ["query", "subanswer"] * hops + ["answer"]
        return hops >= self.min_hops and all(s.valid for s in steps) and [s.kind for s in steps] == order

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        tag, neutral = _TAG_OF_MOVE[moves[0].kind], self.codec.neutralise
        return f"{neutral(moves[0].thought)} </step>\n<{tag}>\n{neutral(moves[0].text)} </{tag}>"


def step_kind(text: str) -> str | None:
    """The kind of a strictly valid step, else None.

    `text` is what the policy sampled, after the scaffold `<step>`: a thought, `</step>`, and one payload in its tags,
    each tag once and spelt exactly, nothing empty, no other tag, and nothing after the closing tag.
    """
    cuts = [match.start() for match in _ANY_TAG.finditer(text)]
    if len(cuts) != 3:
        return None
    thought, rest = text[: cuts[0]], [text[a:b] for a, b in zip(cuts, [*cuts[1:], None], strict=True)]
    for tag, kind in _KIND.items():
        expected = ("</step>", f"<{tag}>", f"</{tag}>")
        if all(part.startswith(name) for part, name in zip(rest, expected, strict=True)):
            between, payload, after = (part[len(name) :] for part, name in zip(rest, expected, strict=True))
            if thought.strip() and not between.strip() and payload.strip() and not after.strip():
                return kind
    return None
