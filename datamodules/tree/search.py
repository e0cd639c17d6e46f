"""Tree search over steps: many trees advance together, so that a round is one batch of expansions and one of rollouts.

One selection a tree a round (or several, kept apart by virtual losses): descend to a leaf; if it was visited before,
expand it by K samples and go on to one of them; play the episode out from there; back the outcome up. After ProRAG
(arXiv 2601.21912, section on PRM data), with the policy's own probabilities as priors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from common.answers import exact_match, f1_score
from common.errors import ConfigError
from common.seeds import stable_hash
from datamodules.tree.node import Node, Tree
from datamodules.tree.puct import Prior, backup, priors, puct_scores
from envs.interfaces import Sampler
from envs.retrieval import RetrievalEnvironment
from envs.rollout import play_out
from envs.sampling import take_turns
from envs.types import Act, Episode, Question, Request, Turn

Outcome = Literal["exact", "f1"]


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How trees are grown; see `datamodules.tree_search.TreeSearch`."""

    simulations: int = 32
    children: int = 4
    c_puct: float = 2.5
    discount: float = 0.99
    prior: Prior = "logp_mean"
    discount_simulation: bool = True
    outcome: Outcome = "exact"
    parallel: int = 1
    pool: int = 64


@dataclass(slots=True)
class _Growth:
    """A tree under search, what is left of its budget, and the virtual losses of the round."""

    tree: Tree
    budget: int
    forks: int = 0
    virtual: Counter[int] = field(default_factory=Counter)

    def fork(self, path: Sequence[Node]) -> Episode:
        """An episode to continue from a path; its number keeps its random numbers apart from every other's."""
        self.forks += 1
        return self.tree.episode(path, sample=self.forks - 1)

    def descend(self, c_puct: float) -> list[Node]:
        """The path to the leaf that is selected; empty if nothing in the tree can be selected any more."""
        while not self.tree.root.dead:
            path = [self.tree.root]
            while live := [child for child in path[-1].children if not child.dead]:
                visits = [child.visits + self.virtual[id(child)] for child in live]
                values = [
                    child.value * child.visits / max(visited, 1) for child, visited in zip(live, visits, strict=True)
                ]
                scores = puct_scores(values, [child.prior for child in live], visits, c_puct=c_puct)
                path.append(live[int(scores.argmax())])
            if not path[-1].children:
                return path
            path[-1].dead = True  # all its children are
        return []


@dataclass(slots=True)
class _Visit:
    """One selection under way: the path to its leaf, and the episode that is played out from there."""

    growth: _Growth
    path: list[Node]
    episode: Episode | None = None


class TreeSearcher:
    """Grows trees in one environment.

    Args:
        environment: its limit of turns is the greatest depth.
        expander: samples the children.
        simulator: plays episodes out; may be the expander.
        settings: of the search.
        seed: of all random numbers.
    """

    def __init__(
        self,
        environment: RetrievalEnvironment,
        expander: Sampler,
        simulator: Sampler,
        settings: SearchSettings,
        *,
        seed: int,
    ) -> None:
        self.environment, self.expander, self.simulator = environment, expander, simulator
        self.settings, self.seed = settings, seed

    def grow(self, questions: Sequence[Question], tick: Callable[[int], object] = int) -> list[Tree]:
        """One tree a question, in order; `tick` is told how many selections were made.

        A tree does not depend on which others grow beside it, within the limits of the samplers' own promise.

        Raises:
            RetrievalError: the retriever failed too often in a row.
        """
        growths = [
            _Growth(Tree(question, self.environment.protocol.prompt(question)), self.settings.simulations)
            for question in questions
        ]
        for growth in growths:
            growth.tree.counts = dict.fromkeys(("expansions", "simulations", "terminal", "dead", "failures"), 0)
        while visits := [visit for growth in growths for visit in self._select(growth)]:
            self._expand([visit for visit in visits if visit.path[-1].visits or len(visit.path) == 1])
            self._simulate(visits)
            tick(len(visits))
        return [growth.tree for growth in growths]

    def _select(self, growth: _Growth) -> list[_Visit]:
        """The tree's leaves of this round. A leaf at which an episode ended is worth what it was worth: no work."""
        visits: list[_Visit] = []
        growth.virtual.clear()
        while growth.budget and len(visits) < self.settings.parallel:
            path = growth.descend(self.settings.c_puct)
            if not path or any(path[-1] is visit.path[-1] for visit in visits):
                break
            growth.budget -= 1
            if path[-1].outcome is not None:
                growth.tree.counts["terminal"] += 1
                self._back_up(path, path[-1].outcome, len(path) - 1)
            else:
                visits.append(_Visit(growth, path))
                growth.virtual.update(map(id, path))
        return visits

    def _expand(self, visits: Sequence[_Visit]) -> None:
        """Sample the children of every leaf in one batch, and move each visit on to one of them."""
        forks: list[Episode] = []
        requests: list[Request] = []
        shares: list[range] = []
        for visit in visits:
            first = len(forks)
            for _ in range(self.settings.children):
                fork = visit.growth.fork(visit.path)
                coming = self.environment.next(fork, self.seed)
                if isinstance(coming, Act):
                    name = type(self.environment.protocol).__name__
                    raise ConfigError(f"{name} takes turns of its own; a tree searches over sampled ones alone")
                if coming is None:  # the prompt leaves no room
                    self._close(visit.path[-1], fork)
                    break
                forks.append(fork)
                requests.append(coming)
            shares.append(range(first, len(forks)))
        turns = take_turns(self.expander, requests)
        distinct = [_distinct(turns, share) for share in shares]
        kept = [index for counts in distinct for index in counts]
        self.environment.apply([forks[index] for index in kept], [turns[index] for index in kept])
        for visit, counts in zip(visits, distinct, strict=True):
            self._adopt(visit, {index: forks[index] for index in counts}, counts)
        going = {id(visit.episode) for visit in visits if self.simulator is self.expander}
        self.expander.release([fork for fork in forks if id(fork) not in going])

    def _adopt(self, visit: _Visit, forks: dict[int, Episode], multiplicities: dict[int, int]) -> None:
        """Make nodes of a leaf's samples; those that a failed retrieval cut short are counted and left out."""
        leaf, counts = visit.path[-1], visit.growth.tree.counts
        if leaf.outcome is not None:
            return
        counts["expansions"] += 1
        whole = [index for index, fork in forks.items() if fork.status != "error"]
        counts["failures"] += sum(multiplicities[index] for index in forks if index not in whole)
        if not whole:
            leaf.dead = True
            counts["dead"] += 1
            return
        turns = [forks[index].turns[-1] for index in whole]
        probabilities = priors(turns, [multiplicities[index] for index in whole], self.settings.prior)
        for index, turn, probability in zip(whole, turns, probabilities, strict=True):
            child = Node(turn, probability, multiplicities[index])
            if self.environment.next(forks[index], self.seed) is None:
                self._close(child, forks[index])
            leaf.children.append(child)
        sample = forks[whole[0]].sample
        chosen = stable_hash(self.seed, "child", visit.growth.tree.question.id, sample) % len(whole)
        visit.path.append(leaf.children[chosen])
        visit.episode = forks[whole[chosen]]

    def _simulate(self, visits: Sequence[_Visit]) -> None:
        """Play out every visit's episode, in one pool, and back its outcome up."""
        visits = [visit for visit in visits if not visit.path[-1].dead]
        for visit in visits:
            if visit.episode is None:
                visit.episode = visit.growth.fork(visit.path)
        playing = [visit.episode for visit in visits if visit.episode is not None]
        play_out(self.environment, self.simulator, playing, seed=self.seed, pool=self.settings.pool)
        for visit, episode in zip(visits, playing, strict=True):
            counts = visit.growth.tree.counts
            if episode.status == "error":
                counts["failures"] += 1
                continue
            counts["simulations"] += 1
            end = len(episode.turns) if self.settings.discount_simulation else len(visit.path) - 1
            self._back_up(visit.path, self._outcome(episode), end)

    def _back_up(self, path: Sequence[Node], outcome: float, end: int) -> None:
        for depth, node in enumerate(path):
            node.value, node.visits = backup(
                node.value, node.visits, outcome, discount=self.settings.discount, steps_to_end=end - depth
            )

    def _close(self, node: Node, episode: Episode) -> None:
        """Note at a node that its episode is over."""
        node.status, node.outcome = episode.status, self._outcome(episode)

    def _outcome(self, episode: Episode) -> float:
        """How right the answer is; 0 also where there is none or it came too late."""
        score = exact_match if self.settings.outcome == "exact" else f1_score
        return score(episode.answer, episode.question.answers)


def _distinct(turns: Sequence[Turn], share: range) -> dict[int, int]:
    """The first of each group of samples with the same tokens, and the size of the group."""
    first: dict[tuple[int, ...], int] = {}
    counts: Counter[int] = Counter(first.setdefault(turns[index].action_ids, index) for index in share)
    return dict(counts)
