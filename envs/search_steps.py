"""Which steps search, which claim reads what a search found, and which steps state something without a search."""

from __future__ import annotations

from collections.abc import Sequence

from envs.types import Step


def searches(steps: Sequence[Step]) -> list[tuple[int, int | None]]:
    """For every search (the index of the step with the query, the index of the step whose claim reads it).

    A step that searches and claims reads its own search; otherwise the next claim does that comes before another
    search, is not from memory and is not the answer. What comes after a search that the protocol made by itself is not
    from memory: its passages stand above it. None where there is no such claim.
    """
    found: list[tuple[int, int | None]] = []
    waiting: int | None = None  # the search that no claim has read yet
    for index, step in enumerate(steps):
        if step.query:
            found.append((index, index if step.claim else None))
            waiting = None if step.claim else len(found) - 1
        elif waiting is not None and _claims(step) and not (step.recall and steps[found[waiting][0]].spans):
            found[waiting] = (found[waiting][0], index)
            waiting = None
    return found


def statements(steps: Sequence[Step]) -> list[int]:
    """Indices of the steps that claim something without a search: not the answer, and no claim that reads one."""
    reading = {reader for _, reader in searches(steps)}
    return [index for index, step in enumerate(steps) if _claims(step) and not step.query and index not in reading]


def _claims(step: Step) -> bool:
    return bool(step.claim) and step.kind != "answer"
