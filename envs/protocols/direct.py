"""Answering at once: the two baselines every agent is compared with.

Naive generation answers from memory; standard RAG retrieves once with the question itself, puts the passages into the
prompt and answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envs.protocols.rendering import render_hits
from envs.protocols.step_a_turn import Format, plain_text, turn_step
from envs.requests import Act, Data, Done, Request
from envs.text import Codec
from envs.types import Action, Episode, Hit, Move, MoveKind, Observation, Question, Step, Turn

_PASSAGES = Data("", cuttable=True)  # marks their place in the message; the environment writes them there
FROM_MEMORY = "Answer the question with a few words only, without explanation."
FROM_PASSAGES = "Answer the question from the passages with a few words only, without explanation."


class Direct(Format):
    """One sampled turn: the answer.

    Args:
        tokenizer: folder or hub id; its chat template writes the prompt.
        retrieve: whether the question is searched for first (standard RAG) or not (naive generation).
        instruction: what the user message says first; the default fits `retrieve`.
    """

    moves: tuple[MoveKind, ...] = ("conclude",)

    def __init__(self, tokenizer: Path | str, *, retrieve: bool, instruction: str | None = None) -> None:
        self.codec = Codec(tokenizer)
        self.retrieve = retrieve
        lead = instruction if instruction is not None else (FROM_PASSAGES if retrieve else FROM_MEMORY)
        self.user = f"{lead}\n\nPassages:\n{{passages}}\n" if retrieve else f"{lead}\n"
        self.user += "\nQuestion: {question}"

    def _parts(self, question: Question) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids of the message before and after the passages; without retrieval all of it stands before."""
        pieces = self.codec.chat(self.user, passages=_PASSAGES, question=question.text)
        cut = pieces.index(_PASSAGES) if self.retrieve else len(pieces)
        return self.codec.encode(pieces[:cut]), self.codec.encode(pieces[cut:])

    def prompt(self, question: Question) -> tuple[int, ...]:
        return self._parts(question)[0]

    def next(self, episode: Episode) -> Request | Act | Done:
        sampled = [turn for turn in episode.turns if turn.finish != "scripted"]
        if sampled:
            return Done("answered")
        if self.retrieve and not episode.turns:
            return Act(episode, Action("query", episode.question.text))
        return Request(episode, self._parts(episode.question)[1], stop=())

    def parse(self, episode: Episode, turn: Turn) -> Action:
        return Action("answer", plain_text(self.codec, turn))

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        return Observation(data=render_hits(hits)) if action.kind == "query" else Observation()

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        return tuple(
            # Nothing but the answer is shown, so no oracle can judge how it came about: there is no claim.
            turn_step(index, turn, valid=bool(turn.action.text), claim=None)
            for index, turn in enumerate(episode.turns)
        )

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        return f"{self.codec.neutralise(moves[0].text)}{self.codec.tokenizer.eos_token}"
