"""Tree search over steps: many trees advance together, so that a round is one batch of expansions and one of rollouts.

A round selects a node of every tree (or several, kept apart by virtual losses). From the root it descends to the child
with the highest score, as far as the width rule samples no children and there are any. The node gets its children and
one of them is reached; where it gets none, the node itself is. What is reached is played out and valued, and the value
is backed up. After ProRAG (arXiv 2601.21912, section on PRM data), with the policy's own probabilities as priors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from common.errors import ConfigError
from common.seeds import stable_hash
from datamodules.tree.node import Node, Tree
from datamodules.tree.puct import Prior, priors
from datamodules.tree.selection import AllAtOnce, Puct, Selection, Width
from datamodules.tree.values import AnswerScore, Backup, DiscountedMean, Leaf, LeafValue
from envs.interfaces import Sampler
from envs.requests import Act, Request
from envs.retrieval import RetrievalEnvironment
from envs.rollout import play_out
from envs.sampling import take_turns
from envs.types import Episode, Question, Turn


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Settings of a search; see `datamodules.tree_search.TreeSearch`."""

    simulations: int = 32
    selection: Selection = field(default_factory=Puct)
    width: Width = field(default_factory=AllAtOnce)
    leaf_value: LeafValue = field(default_factory=AnswerScore)
    backup: Backup = field(default_factory=DiscountedMean)
    prior: Prior = "logp_mean"
    parallel: int = 1
    pool: int = 64


@dataclass(slots=True)
class _Growth:
    """A tree under search, what is left of its budget, the virtual losses of the round, and which nodes failed."""

    tree: Tree
    budget: int
    forks: int = 0
    tried: set[int] = field(default_factory=set)  # nodes all of whose samples failed
    virtual: Counter[int] = field(default_factory=Counter)

    def fork(self, path: Sequence[Node]) -> Episode:
        """An episode that continues a path; its sample number, and so its random numbers, are its own."""
        self.forks += 1
        return self.tree.episode(path, sample=self.forks - 1)

    def descend(self, settings: SearchSettings) -> list[Node]:
        """The path to the node that is expanded or valued next; empty if every node is dead."""
        while not self.tree.root.dead:
            path = [self.tree.root]
            while not settings.width(path[-1]) and (live := [child for child in path[-1].children if not child.dead]):
                visits = [child.visits + self.virtual[id(child)] for child in live]
                values = [child.value * child.visits / max(count, 1) for child, count in zip(live, visits, strict=True)]
                visited = path[-1].visits + self.virtual[id(path[-1])]
                scores = settings.selection(values, [child.prior for child in live], visits, visited)
                path.append(live[int(scores.argmax())])
            if not path[-1].children or settings.width(path[-1]):
                return path
            path[-1].dead = True  # all its children are
        return []


@dataclass(slots=True)
class _Visit:
    """One selection under way: the path to its node, and the episodes that are played out from there."""

    growth: _Growth
    path: list[Node]
    rollouts: list[Episode] = field(default_factory=list)
    failed: bool = False


@dataclass(slots=True)
class _Sample:
    """A sampled step, the episode that it was sampled for, and how often the expansion sampled it."""

    episode: Episode
    turn: Turn
    count: int = 0


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
        self.played: list[Episode] = []  # what was played out for the last trees, in their order, but for failures

    def grow(self, questions: Sequence[Question], tick: Callable[[int], object] = int) -> list[Tree]:
        """One tree a question, in order; `tick` is called with the number of selections of each round.

        A tree does not depend on which others grow beside it, within the limits of the samplers' own promise.

        Raises:
            ConfigError: the protocol takes turns of its own.
            RetrievalError: the retriever failed too often in a row.
        """
        begun = [self.environment.start(question) for question in questions]
        trees = [Tree(one.question, one.prompt_ids, tokenizer=one.tokenizer) for one in begun]
        growths = [_Growth(tree, self.settings.simulations) for tree in trees]
        for growth in growths:
            growth.tree.counts = dict.fromkeys(("expansions", "simulations", "terminal", "dead", "failures"), 0)
        played: dict[int, list[Episode]] = {id(growth.tree): [] for growth in growths}
        with self._prefixes_kept([growth.tree.episode([growth.tree.root]) for growth in growths]):
            left = sum(growth.budget for growth in growths)
            while True:
                visits = [visit for growth in growths for visit in self._select(growth)]
                left, before = sum(growth.budget for growth in growths), left
                tick(before - left)  # nodes whose episodes had ended among them, which are no visits
                if not visits:
                    break
                self._expand(visits)
                self._simulate([visit for visit in visits if not visit.failed and not visit.path[-1].dead])
                for visit in visits:
                    played[id(visit.growth.tree)] += [e for e in visit.rollouts if e.status not in (None, "error")]
        self.played = [episode for growth in growths for episode in played[id(growth.tree)]]
        return [growth.tree for growth in growths]

    @contextmanager
    def _prefixes_kept(self, roots: Sequence[Episode]) -> Iterator[None]:
        """Have the samplers keep the prefixes of these trees, since a node's path is a prefix of all below it."""
        samplers = [self.expander] if self.simulator is self.expander else [self.expander, self.simulator]
        with ExitStack() as leaving:
            for sampler in samplers:
                sampler.hold(roots)
                leaving.callback(sampler.release, roots)
            yield

    def _select(self, growth: _Growth) -> list[_Visit]:
        """The tree's nodes of this round. One that ended its episode has its value already, which is backed up."""
        visits: list[_Visit] = []
        growth.virtual.clear()
        while growth.budget and len(visits) < self.settings.parallel:
            path = growth.descend(self.settings)
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
        """Sample children for every node that takes some, in one batch, and move each visit on to one of them."""
        requests = [self._requests(visit) for visit in visits]
        flat = [request for of_visit in requests for request in of_visit]
        turns = iter(take_turns(self.expander, flat))
        samples = [_distinct([(request.episode, next(turns)) for request in of_visit]) for of_visit in requests]
        new = [
            sample
            for visit, distinct in zip(visits, samples, strict=True)
            for ids, sample in distinct.items()
            if ids not in _children(visit.path[-1])
        ]
        self.environment.apply([sample.episode for sample in new], [sample.turn for sample in new])
        ended: list[tuple[Node, Episode]] = []
        for visit, distinct in zip(visits, samples, strict=True):
            if distinct:
                ended += self._add_children(visit, distinct)
        self._end(ended)
        self.expander.release([request.episode for request in flat])

    def _requests(self, visit: _Visit) -> list[Request]:
        """A request for every child that is to be sampled; none where the prompt leaves no room for a turn."""
        requests: list[Request] = []
        for _ in range(self.settings.width(visit.path[-1])):
            fork = visit.growth.fork(visit.path)
            request = self.environment.next(fork, self.seed)
            if isinstance(request, Act):
                name = type(self.environment.protocol).__name__
                raise ConfigError(f"{name} takes turns of its own; a tree searches over sampled turns only")
            if request is None:
                self._end([(visit.path[-1], fork)])
                break
            requests.append(request)
        return requests

    def _add_children(self, visit: _Visit, samples: dict[tuple[int, ...], _Sample]) -> list[tuple[Node, Episode]]:
        """Make children of samples and move the visit on to one of them; returns the children that end their episodes.

        A sample that repeats a child raises its multiplicity. One whose retrieval failed is counted and left out. A
        node that is childless for that alone has a second try when it is next selected: one call may fail many trees.
        """
        node, tree = visit.path[-1], visit.growth.tree
        tree.counts["expansions"] += 1
        known = _children(node)
        reached, ended = list[tuple[Node, Episode, bool]](), list[tuple[Node, Episode]]()
        for ids, sample in samples.items():
            if sample.episode.status == "error":
                tree.counts["failures"] += sample.count
                continue
            child = known.get(ids) or Node(sample.turn, multiplicity=0)
            child.multiplicity += sample.count
            if ids not in known:
                node.children.append(child)
                if self.environment.next(sample.episode, self.seed) is None:
                    ended.append((child, sample.episode))
            if not child.dead:
                reached.append((child, sample.episode, ids not in known))
        if not node.children:
            node.dead = id(node) in visit.growth.tried
            tree.counts["dead"] += node.dead
            visit.growth.tried.add(id(node))
        if not reached:
            visit.failed = True
            return ended
        turns = [child.turn for child in node.children if child.turn is not None]
        shares = priors(turns, [child.multiplicity for child in node.children], self.settings.prior)
        for child, share in zip(node.children, shares, strict=True):
            child.prior = share
        chosen = stable_hash(self.seed, "child", tree.question.id, reached[0][1].sample) % len(reached)
        child, episode, is_new = reached[chosen]
        visit.path.append(child)
        visit.rollouts = [episode][: self.settings.leaf_value.rollouts] if is_new else []
        return ended

    def _simulate(self, visits: Sequence[_Visit]) -> None:
        """Play out the episodes of all visits in one pool, value the nodes reached, and back the values up.

        A visit whose rollouts all failed, or that got no value, changes nothing.
        """
        for visit in visits:
            if visit.path[-1].outcome is None:
                more = self.settings.leaf_value.rollouts - len(visit.rollouts)
                visit.rollouts += [visit.growth.fork(visit.path) for _ in range(more)]
        playing = [episode for visit in visits for episode in visit.rollouts]
        play_out(self.environment, self.simulator, playing, seed=self.seed, pool=self.settings.pool)
        valued: list[tuple[_Visit, Leaf]] = []
        for visit in visits:
            tree = visit.growth.tree
            finished = [episode for episode in visit.rollouts if episode.status != "error"]
            tree.counts["failures"] += len(visit.rollouts) - len(finished)
            if finished or not visit.rollouts:
                valued.append((visit, Leaf(tree.episode(visit.path), finished)))
        fresh = [leaf for visit, leaf in valued if visit.path[-1].outcome is None]
        values = iter(self.settings.leaf_value(fresh))
        for visit, leaf in valued:
            known = visit.path[-1].outcome
            value = next(values) if known is None else known
            if value is not None:
                visit.growth.tree.counts["simulations"] += 1
                end = max(len(episode.turns) for episode in (leaf.episode, *leaf.rollouts))
                self._back_up(visit.path, value, end)

    def _back_up(self, path: Sequence[Node], value: float, end: int) -> None:
        for node, changed in zip(path, self.settings.backup(path, value, end), strict=True):
            node.value, node.visits = changed

    def _end(self, ended: Sequence[tuple[Node, Episode]]) -> None:
        """Store status and value of the nodes at which episodes ended; one without a value is not selected again."""
        values = self.settings.leaf_value([Leaf(episode, [episode]) for _, episode in ended])
        for (node, episode), value in zip(ended, values, strict=True):
            node.status, node.outcome, node.dead = episode.status, value, value is None


def _children(node: Node) -> dict[tuple[int, ...], Node]:
    """The children of a node by the tokens of their steps."""
    return {child.turn.action_ids: child for child in node.children if child.turn is not None}


def _distinct(sampled: Sequence[tuple[Episode, Turn]]) -> dict[tuple[int, ...], _Sample]:
    """The first of each group of samples with the same tokens, and the size of the group."""
    distinct: dict[tuple[int, ...], _Sample] = {}
    for episode, turn in sampled:
        distinct.setdefault(turn.action_ids, _Sample(episode, turn)).count += 1
    return distinct
