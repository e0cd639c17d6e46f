"""SIRAG's process reward, and statistics of its agents' choices during training."""

from __future__ import annotations

import math
import typing
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from common.costs import JUDGE_CALLS
from envs.interfaces import RewardContext
from envs.types import Episode
from systems.sirag.protocol import DECISION_MAKER
from systems.sirag.state import Choice, choices_of


class ChoiceJudge(typing.Protocol):
    """Says how reasonable actions were in the states that they were taken in."""

    def score(self, choices: Sequence[Choice]) -> list[float | None]:
        """One number in [0, 1] an action, in order; None where no verdict was had, which never becomes a reward.

        A judge that cannot work at all raises a UserError: the run ends with one line.
        """
        ...


def judged(episodes: Sequence[Episode], context: RewardContext, *, judge: ChoiceJudge) -> list[Tensor]:
    """`[S]` an episode: what the judge thinks of each action, NaN where it failed and for the generator's turn.

    An action that several episodes share is judged once. One that cannot be read is worth 0 without a judge. Logged is
    `failed`, the share of the judge's calls without a verdict.
    """
    every = [choices_of(episode) for episode in episodes]
    asked = {choice.uid: choice for row in every for choice in row if choice and _readable(choice)}
    scores = judge.score(list(asked.values()))
    context.counts[JUDGE_CALLS] += len(asked)
    context.log("failed", torch.tensor([float(score is None) for score in scores]))
    known = {uid: math.nan if score is None else score for uid, score in zip(asked, scores, strict=True)}
    return [torch.tensor([math.nan if one is None else known.get(one.uid, 0.0) for one in row]) for row in every]


def _readable(choice: Choice) -> bool:
    return choice.action.kind not in ("invalid", "keep_all")


def retrievals(episodes: Sequence[Episode], context: RewardContext, *, hops: Sequence[int] = (1, 2, 3, 4)) -> Tensor:
    """`[B]`: retrievals of each episode; a reward of weight 0, for what it logs by the question's hops.

    For every number of hops, an action that several episodes share counting once:
    - `first/<n>_hops`: how probable it is that the first decision is to retrieve. Where both branches of a tree's root
      were given, it is the share of the policy's probability that their weights hold.
    - `later/<n>_hops`: the share of later decisions that retrieve.
    - `kept/<n>_hops`: the share of the shown passages that were kept.
    """
    values: dict[str, list[float]] = {f"{what}/{n}_hops": [] for what in ("first", "later", "kept") for n in hops}
    roots: dict[str, dict[str, tuple[float, float]]] = {}  # by question and uid: weight, and whether it retrieves
    seen: set[str] = set()
    for episode in episodes:
        count = episode.question.gold.hops if episode.question.gold else None
        for number, choice in enumerate(choices_of(episode)):
            if choice is None or choice.uid in seen or count not in hops:
                continue
            seen.add(choice.uid)
            if number == 0:
                root = (episode.weight, float(choice.action.kind == "query"))
                roots.setdefault(f"first/{count}_hops {episode.question.id}", {})[choice.uid] = root
            elif choice.agent == DECISION_MAKER:
                values[f"later/{count}_hops"].append(float(choice.action.kind == "query"))
            else:
                names = {hit.document.id for hit in choice.kept}
                values[f"kept/{count}_hops"] += [float(hit.document.id in names) for hit in choice.shown]
    for name, branches in roots.items():
        total = math.fsum(weight for weight, _ in branches.values())
        share = math.fsum(weight * retrieves for weight, retrieves in branches.values()) / total
        values[name.partition(" ")[0]].append(share)
    for name, known in values.items():
        context.log(name, torch.tensor(known))
    kinds = [Counter(turn.action.kind for turn in episode.turns) for episode in episodes]
    return torch.tensor([float(kind["query"]) for kind in kinds])
