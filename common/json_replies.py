"""The JSON object in a model's reply, which may stand after its reasoning, in a fence, or among prose."""

from __future__ import annotations

import json
from typing import Any

_OPENING, _CLOSING = "<think>", "</think>"


def json_object(reply: str, *, cut: bool = False) -> dict[str, Any]:
    """The only JSON object of a reply.

    Objects in reasoning are drafts, and two objects leave open which is meant: neither is guessed.

    Args:
        cut: the reply reached its maximum length, so an object among prose may be a draft.

    Raises:
        ValueError: there is none, or more than one, or the reply breaks off.
    """
    value = _value(reply.strip().removeprefix("\ufeff").strip(), cut)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, not {type(value).__name__}")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # it could not be written later
        raise ValueError("a lone surrogate, half of a character") from error
    return value


def _value(text: str, cut: bool) -> Any:
    try:
        try:
            return _DECODER.decode(text)
        except json.JSONDecodeError:
            if cut:
                raise ValueError("the reply breaks off at reply_tokens") from None
            return _among_prose(_after_reasoning(text))
    except RecursionError as error:
        raise ValueError("JSON nested too deep") from error


def _after_reasoning(text: str) -> str:
    """Text after a block of reasoning before any object; a chat template may have written its opening tag."""
    reasoning, closed, rest = text.partition(_CLOSING)
    prose, opened, _ = reasoning.partition(_OPENING)
    return rest if closed and not (opened and "{" in prose) else text


def _among_prose(text: str) -> Any:
    before, brace, _ = text.partition("{")
    if _OPENING in before:
        raise ValueError("the reasoning does not end")
    if not brace:
        raise ValueError("no JSON object" if before.strip() else "an empty reply")
    value, end = _DECODER.raw_decode(text, len(before))
    after = text[end:]
    if "{" in after:
        raise ValueError("more than one JSON object")
    if before.count("[") > before.count("]") or after.lstrip().startswith((",", "]", "}")):
        raise ValueError("an object inside another JSON value")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a duplicate key in a JSON object")
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_number)
