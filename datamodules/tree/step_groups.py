"""The steps of a tree that a judge compares: siblings, and steps with different histories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from common.seeds import stable_hash
from datamodules.tree.node import Tree
from envs.interfaces import AgentFormat
from envs.pairs import Candidate
from envs.types import Episode


def candidate_groups(
    tree: Tree, protocol: AgentFormat, *, min_visits: int = 1, descend_visits: int = 3
) -> Iterator[list[Candidate]]:
    """Groups of at least two siblings, from the root down, depth first.

    A child is a candidate if it was visited `min_visits` times and its last step follows the format; a query also
    needs hits. Children of a node are compared if the node was visited `descend_visits` times. The defaults are those
    of ProRAG's released code.
    """
    for path in tree.paths():
        if any(node.visits < descend_visits for node in path[1:]):
            continue
        group = []
        for child in path[-1].children:
            episode = tree.episode((*path, child))
            episode.steps, episode.answer = protocol.steps(episode), protocol.answer(episode)
            if child.visits >= min_visits and can_be_judged(episode):
                group.append(Candidate(episode, child.value, child.visits))
        if len(group) > 1:
            yield group


def mixed_group(groups: Sequence[Sequence[Candidate]], *, seed: int) -> list[Candidate]:
    """The candidates of all groups of one tree as one group, ordered by a hash, so that depths are mixed.

    Siblings share their history, so the part of a step's worth that depends on the history is equal for all of them.
    A reward model fitted on siblings alone cannot learn that part.
    """
    candidates = [candidate for group in groups for candidate in group]
    order = sorted(range(len(candidates)), key=lambda place: stable_hash(seed, "mixed", place))
    return [candidates[place] for place in order]


def can_be_judged(episode: Episode) -> bool:
    """Whether the last step is in format and, where it is a query, has hits."""
    last = episode.steps[-1] if episode.steps else None
    return last is not None and last.valid and (not last.query or bool(last.hits))
