"""Steps of an episode: what each does (search, read, state), the state it begins in, and its form for a judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.answers import normalize_answer
from common.plain_text import without_tags
from common.seeds import stable_hash
from envs.types import Episode, Step


def searches(steps: Sequence[Step]) -> list[tuple[int, int | None]]:
    """For every search (the index of the step with the query, the index of the step whose claim reads it).

    A step that searches and claims reads its own search; otherwise the next claim does that comes before another
    search, is not from memory and is not the answer. What comes after a search that the protocol made on its own is not
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


def shown_step(step: Step) -> dict[str, Any]:
    """A step as JSON can hold it, without tags: all that was said and, where it has them, query, passages and claim."""
    row: dict[str, Any] = {"kind": step.kind, "said": without_tags(step.said)}
    if step.query:
        row["query"] = without_tags(step.query)
        row["found"] = [without_tags(f"{hit.document.title}: {hit.document.text}") for hit in step.hits]
    if step.claim:
        row["claim"] = without_tags(step.claim)
    return row


def step_states(episode: Episode) -> tuple[str, ...]:
    """For each step a name of the state it begins in; on one question, equal names are equal states.

    A state is the sequence of steps so far, of each its kind, the ids of the passages that it found, in their order,
    and its claim, normalised. How a query was put or what was thought is no part of it, so two episodes that searched
    in other words and found the same passages are in the same state.
    """
    names: list[str] = []
    state = 0
    for step in episode.steps:
        names.append(f"{state:016x}")
        found = "\n".join(hit.document.id for hit in step.hits)
        state = stable_hash(state, step.kind, found, normalize_answer(step.claim or ""))
    return tuple(names)


def last_passages(episode: Episode) -> tuple[str, ...]:
    """For each step a name of the passages, in any order, that the last search before it found.

    Before the first search it is empty; a search that found nothing has a name of its own.
    """
    names: list[str] = []
    found = ""
    for step in episode.steps:
        names.append(found)
        if step.query:
            found = "\n".join(["found:", *sorted(hit.document.id for hit in step.hits)])
    return tuple(names)
