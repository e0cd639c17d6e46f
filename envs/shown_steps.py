"""What a chat model that judges steps sees of one, in any format."""

from __future__ import annotations

from typing import Any

from common.plain_text import without_tags
from envs.types import Step


def shown_step(step: Step) -> dict[str, Any]:
    """A step as JSON can hold it, without tags: all that was said and, where it has them, query, passages and claim."""
    row: dict[str, Any] = {"kind": step.kind, "said": without_tags(step.said)}
    if step.query:
        row["query"] = without_tags(step.query)
        row["found"] = [without_tags(f"{hit.document.title}: {hit.document.text}") for hit in step.hits]
    if step.claim:
        row["claim"] = without_tags(step.claim)
    return row
