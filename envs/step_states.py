"""In which state a step of an episode begins: what the policy has read and claimed so far, in no words of its own."""

from __future__ import annotations

from common.answers import normalize_answer
from common.seeds import stable_hash
from envs.types import Episode


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
