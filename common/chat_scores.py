"""Scores from 0 to 100 that a chat model gives, one a call."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

from common.chat_client import ChatCall, ChatClient
from common.chat_endpoint import ChatError

log = logging.getLogger(__name__)
_FEW = 3  # calls whose scores are all from 0 to 1: fewer may be a slip
_MANY = 10  # scores that are at most 10 of 100: fewer may be right


class _Reply(BaseModel):
    score: Annotated[float, Field(strict=True, ge=0, le=100)]


def chat_scores(client: ChatClient, calls: Sequence[ChatCall], *, label: str) -> list[float | None]:
    """A hundredth of each reply's `score`; None after a timeout, or replies that are not the JSON object asked for.

    A score above 0 and up to 1 is invalid: it is far more likely on a scale to 1 than at most 1 of 100.

    Args:
        client: asks the model.
        calls: each asks for a JSON object with a `score` from 0 to 100.
        label: of the progress bar.

    Raises:
        ChatError: the work has to end, or the model answers on a scale from 0 to 1; replies that were paid for are
            kept.
    """
    small: list[float] = []

    def read(reply: dict[str, Any]) -> float:
        score = _Reply.model_validate(reply).score
        if 0 < score <= 1:
            small.append(score)
            raise ValueError(f"score {score:g} is on a scale of 0 to 1, but 0 to 100 was asked for")
        return score

    scores = client.ask(calls, read, label=label)
    given = [score for score in scores if score is not None]
    if min(len(small), scores.count(None)) >= _FEW and not any(given):  # its zeros alone would bias what is learned
        raise ChatError(
            f"{client.where}: scores such as {small[0]:g} are on a scale of 0 to 1, but 0 to 100 was asked for, "
            "and none is above 1: use another model"
        )
    if len(given) >= _MANY and 0 < max(given) <= 10:
        log.warning(
            "%s: all %d scores are at most %g of 100; is its scale another?", client.where, len(given), max(given)
        )
    return [None if score is None else score / 100 for score in scores]
