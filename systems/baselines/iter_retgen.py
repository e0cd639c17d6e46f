"""Iter-RetGen (Shao et al. 2023, arXiv 2305.15294): retrieve, answer, retrieve with the answer as well, answer again.

The first retrieval takes the question, each later one the question and the output before it. Passages replace those of
the iteration before, and no context shows an earlier output. The last output is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from common.errors import ConfigError
from envs.protocols.direct import FROM_PASSAGES
from envs.protocols.rendering import render_hits
from envs.protocols.step_a_turn import RendersAnew, plain_text, turn_step
from envs.requests import Act, Data, Done, Request
from envs.text import Codec
from envs.types import Action, Episode, Move, MoveKind, Step, Turn


class IterRetGen(RendersAnew):
    """One output an iteration: a claim that the next retrieval goes by, at last the answer.

    Args:
        tokenizer: folder or hub id; its chat template writes the prompt.
        iterations: rounds of a retrieval and an output.
        instruction: what the user message says first.

    Raises:
        ConfigError: there is no iteration.
    """

    moves: tuple[MoveKind, ...] = ("read", "conclude")

    def __init__(self, tokenizer: Path | str, *, iterations: int = 3, instruction: str = FROM_PASSAGES) -> None:
        if iterations < 1:
            raise ConfigError(f"iterations is {iterations}; it must be at least 1")
        self.codec, self.iterations = Codec(tokenizer), iterations
        self.user = f"{instruction}\n\nPassages:\n{{passages}}\n\nQuestion: {{question}}"

    def next(self, episode: Episode) -> Request | Act | Done:
        outputs = [turn.action.text for turn in episode.turns if turn.finish != "scripted"]
        if len(outputs) == self.iterations:
            return Done("answered")
        if len(episode.turns) == 2 * len(outputs):
            return Act(episode, Action("query", " ".join([episode.question.text, *outputs[-1:]])))
        passages = Data(render_hits(episode.turns[-1].hits), cuttable=True)
        context = self.codec.chat(self.user, passages=passages, question=episode.question.text)
        return Request(episode, (), stop=(), context=context)

    def parse(self, episode: Episode, turn: Turn) -> Action:
        last = sum(turn.finish != "scripted" for turn in episode.turns) == self.iterations - 1
        return Action("answer" if last else "output", plain_text(self.codec, turn))

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        return tuple(
            Step("query", True, (), query=turn.action.text, hits=turn.hits)
            if turn.finish == "scripted"
            else turn_step(index, turn, valid=bool(turn.action.text), claim=turn.action.text)
            for index, turn in enumerate(episode.turns)
        )

    def say(self, episode: Episode, moves: Sequence[Move]) -> str:
        """An output is all that can be said from these passages: the last move's."""
        return f"{self.codec.neutralise(moves[-1].text)}{self.codec.tokenizer.eos_token}"
