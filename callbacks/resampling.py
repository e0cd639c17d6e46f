"""Groups that teach nothing are replaced by groups of other questions, a bounded number of times (DAPO)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from envs.types import Episode
from modules.rewards.terms import Scores, replaced


@dataclass(frozen=True, slots=True)
class ScoredGroups:
    """A rank's episodes of an iteration, group by group, their rewards, and the episodes thrown away on the way."""

    episodes: list[Episode]
    scores: Scores
    thrown_away: list[Episode] = field(default_factory=list)


def replace_flat_groups(
    groups: ScoredGroups,
    *,
    group_size: int,
    rounds: int,
    flat: Callable[[ScoredGroups], Sequence[int]],
    sample: Callable[[int, Sequence[int]], list[Episode]],
    score: Callable[[Sequence[Episode]], Scores],
) -> ScoredGroups:
    """Sample flat groups anew, each time with other questions; those still flat after the last round stay.

    Only the new groups are scored in a round, so no reward is asked twice. Source: dynamic sampling of DAPO, arXiv
    2503.14476, which goes on until no group is flat.

    Args:
        flat: numbers of the groups whose advantages are all 0.
        sample: from a round's number and the numbers of groups to as many new groups of `group_size` episodes.
        score: rewards of new episodes.
    """
    for number in range(rounds):
        places = flat(groups)
        if not places:
            break
        rows = [place * group_size + sample_ for place in places for sample_ in range(group_size)]
        fresh = sample(number, places)
        episodes, thrown_away = list(groups.episodes), groups.thrown_away + [groups.episodes[row] for row in rows]
        for row, episode in zip(rows, fresh, strict=True):
            episodes[row] = episode
        groups = ScoredGroups(episodes, replaced(groups.scores, rows, score(fresh)), thrown_away)
    return groups
