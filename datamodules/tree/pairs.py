"""Which steps of a tree a judge is asked to compare: siblings, and steps with different histories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from common.seeds import stable_hash
from datamodules.tree.node import Tree
from envs.interfaces import Protocol
from envs.siblings import Candidate
from envs.types import Episode


def candidate_groups(
    tree: Tree, protocol: Protocol, *, min_visits: int = 1, descend_visits: int = 3
) -> Iterator[list[Candidate]]:
    """Groups of at least two siblings, from the root down, depth first.

    A child is a candidate if it was visited `min_visits` times and its last step follows the format; a step that
    searches needs hits too. Below a child only what was visited `descend_visits` times is looked at. Both as in
    ProRAG's released code (1 and 3).
    """
    for path in tree.paths():
        if any(node.visits < descend_visits for node in path[1:]):
            continue
        group = []
        for child in path[-1].children:
            episode = tree.episode((*path, child))
            episode.steps, episode.answer = protocol.steps(episode), protocol.answer(episode)
            if child.visits >= min_visits and _sound(episode):
                group.append(Candidate(episode, child.value, child.visits))
        if len(group) > 1:
            yield group


def mixed_group(groups: Sequence[Sequence[Candidate]], *, seed: int) -> list[Candidate]:
    """The candidates of all groups of one tree together, in the order of a hash, so that no depth comes first.

    Siblings share their history, so whatever a step owes to how far its episode has come is the same for all of them,
    and a reward model fitted on siblings alone cannot learn it.
    """
    candidates = [candidate for group in groups for candidate in group]
    order = sorted(range(len(candidates)), key=lambda place: stable_hash(seed, "mixed", place))
    return [candidates[place] for place in order]


def _sound(episode: Episode) -> bool:
    """Whether the last step can be judged on its content."""
    last = episode.steps[-1] if episode.steps else None
    return last is not None and last.valid and (not last.query or bool(last.hits))
