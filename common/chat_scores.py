"""Scores from 0 to 100 that a chat model gives, one a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, Field

from common.chat_client import ChatCall, ChatClient


class _Reply(BaseModel):
    score: Annotated[float, Field(strict=True, ge=0, le=100)]


def chat_scores(client: ChatClient, calls: Sequence[ChatCall], *, label: str) -> list[float | None]:
    """A hundredth of each reply's `score`; None after a timeout, or replies that are not the JSON object asked for.

    Args:
        client: asks the model.
        calls: each asks for a JSON object with a `score` from 0 to 100.
        label: of the progress bar.

    Raises:
        ChatError: the work has to end; replies that were paid for are kept.
    """
    replies = client.ask(calls, _Reply.model_validate, label=label)
    return [None if reply is None else reply.score / 100 for reply in replies]
