"""Which sibling steps of a tree a judge is asked about."""

from __future__ import annotations

from collections.abc import Iterator

from datamodules.tree.node import Tree
from envs.interfaces import Protocol
from envs.siblings import Candidate
from envs.types import Episode


def candidate_groups(
    tree: Tree, protocol: Protocol, *, min_visits: int = 1, descend_visits: int = 3
) -> Iterator[list[Candidate]]:
    """Groups of at least two siblings, from the root down, depth first.

    A child is a candidate if it was visited `min_visits` times and its last step follows the format; a query needs its
    hits too. Below a child only what was visited `descend_visits` times is looked at. Both as in ProRAG's released
    code (1 and 3).
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


def _sound(episode: Episode) -> bool:
    """Whether the last step can be judged on its content."""
    last = episode.steps[-1] if episode.steps else None
    return last is not None and last.valid and (last.kind != "query" or bool(last.hits))
