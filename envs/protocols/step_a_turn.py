"""Base classes of formats: opening and validity of an episode, its answer, and a turn that is a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.text import Codec
from envs.types import Action, Episode, Hit, Observation, Question, Step, Turn


class Format:
    """Base of a format: an episode is valid if it was answered in steps that all are."""

    codec: Codec

    def steps(self, episode: Episode) -> tuple[Step, ...]:
        raise NotImplementedError

    def valid(self, episode: Episode) -> bool:
        return episode.status == "answered" and all(step.valid for step in self.steps(episode))

    def answer(self, episode: Episode) -> str:
        """The text of the last turn that answers; empty without one."""
        return next((turn.action.text for turn in reversed(episode.turns) if turn.action.kind == "answer"), "")


class OneMessage(Format):
    """Base of a format whose context only grows, after a message with an instruction, if there is one, and question."""

    instruction: str

    def prompt(self, question: Question) -> tuple[int, ...]:
        user = f"{self.instruction}\n\nQuestion: {{question}}" if self.instruction else "{question}"
        return self.codec.encode(self.codec.chat(user, question=self.asked(question)))

    def asked(self, question: Question) -> str:
        """The question as it stands in the message."""
        return question.text


class RendersAnew(Format):
    """Base of a format that writes the whole context of every turn: nothing opens an episode, nothing is observed."""

    def prompt(self, question: Question) -> tuple[int, ...]:
        return ()

    def observe(self, episode: Episode, action: Action, hits: Sequence[Hit]) -> Observation:
        return Observation()  # the next context shows what is to be seen


def turn_step(index: int, turn: Turn, *, valid: bool, claim: str | None, **more: Any) -> Step:
    """The step that is a whole turn of an episode, the `index`th; `more` are further fields of the step."""
    own: dict[str, Any] = {
        "spans": () if turn.finish == "scripted" else ((index, 0, len(turn.action_ids)),),
        "query": turn.action.text if turn.action.kind == "query" else "",
        "said": turn.text,
        "hits": turn.hits,
    }
    return Step(turn.action.kind, valid, claim=claim, **(own | more))


def plain_text(codec: Codec, turn: Turn) -> str:
    """Text of a turn without special tokens."""
    return str(codec.tokenizer.decode(list(turn.action_ids), skip_special_tokens=True)).strip()
