"""What formats share in which a turn is a step, or whose context is rendered anew in every turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.text import Codec
from envs.types import Action, Episode, Hit, Observation, Question, Step, Turn


class RendersAnew:
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


def last_answer(episode: Episode) -> str:
    """The text of the last turn that answers; empty without one."""
    return next((turn.action.text for turn in reversed(episode.turns) if turn.action.kind == "answer"), "")


def plain_text(codec: Codec, turn: Turn) -> str:
    """What a turn says, without special tokens."""
    return str(codec.tokenizer.decode(list(turn.action_ids), skip_special_tokens=True)).strip()
