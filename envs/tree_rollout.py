"""Episodes as the paths of one tree a question: decisions are sampled several times near the root (SIRAG).

A decision is a turn that trains. The decisions above a fork are shared by all episodes below it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.errors import ConfigError
from common.progress import progress_bar
from envs.interfaces import Sampler
from envs.requests import Act, Request
from envs.retrieval import RetrievalEnvironment
from envs.rollout import play_out
from envs.sampling import take_turns
from envs.types import Episode, Question


@dataclass(slots=True)
class TreeRollout:
    """The `sampling` of a rollout callback: one tree a question, whose paths are the episodes.

    The root decision is not sampled: each of `root` begins it once, and the policy continues there. Below, decisions
    of the next `depth` levels are sampled `samples` times, later ones once. Nothing is merged: two samples that say the
    same are two branches. A question's tree is one place of the buffer, so `group_size` is 1.

    As the root's branches are given and not sampled, their episodes have weights. The weight of a branch is the
    probability that the policy gives to its beginning (the product over the tokens of its text in `root`, at the
    sampling temperature), divided by the mean of that over the branches: the weights of a tree's branches have mean 1.
    `Episode.weight` has it, and it multiplies the advantage of every trained token of the branch's episodes, from the
    root decision down: its own tokens and those of all later decisions. So the policy loss is that of a root decision
    drawn from the policy, up to a constant. It multiplies no reward, no credit and no mean over leaves, no value or
    return, no loss of the critic and no divergence.

    Args:
        root: the beginnings of the root decision as text, such as `<decision>stop</decision>`; none: it is sampled as
            the decisions below it are.
        samples: of a decision near the root.
        depth: levels of decisions below the root's that are sampled so often.
        leaves: episodes of a tree at most; a decision that would lead to more is sampled as often as there is room.
        pool: episodes at a time where nothing forks any more.

    Raises:
        ConfigError: a number is out of range; on sampling, the data has groups, or the agents' turns do not train.
    """

    root: Sequence[str] = ()
    samples: int = 2
    depth: int = 2
    leaves: int = 8
    pool: int = 64

    def __post_init__(self) -> None:
        if min(self.samples, self.pool) < 1 or self.depth < 0 or self.leaves < max(1, len(self.root)):
            numbers = f"samples {self.samples}, depth {self.depth}, leaves {self.leaves}, pool {self.pool}"
            raise ConfigError(f"tree rollout: {numbers}: at least 1, depth 0, and as many leaves as root branches")

    def __call__(
        self,
        environment: RetrievalEnvironment,
        sampler: Sampler,
        questions: Sequence[Question],
        *,
        group_size: int,
        seed: int,
        iteration: int,
    ) -> list[Episode]:
        """Finished episodes, question by question, in the order of their trees' branches.

        Random numbers come from (seed, iteration, question, branch, turn). What shares a batch is decided by the
        questions alone.

        Raises:
            RetrievalError: the retriever failed too often in a row.
        """
        if group_size != 1:
            raise ConfigError(f"group_size {group_size}: a question's tree is one place of the buffer, so give 1")
        trees = [_Tree([environment.start(question, iteration=iteration)]) for question in questions]
        begun = [environment.protocol.codec.control(text) for text in self.root]
        for level in range(self.depth + 1):
            self._to_decisions(environment, sampler, [episode for tree in trees for episode in tree.episodes], seed)
            beginnings = begun if level == 0 else []
            forks = [fork for tree in trees for fork in tree.fork(len(beginnings) or self.samples, self.leaves)]
            self._decide(environment, sampler, forks, beginnings, seed)
        open_episodes = [episode for tree in trees for episode in tree.episodes]
        with progress_bar(len(open_episodes), "episodes", unit="ep") as bar:
            play_out(environment, sampler, open_episodes, seed=seed, pool=self.pool, tick=bar.update)
        return [episode for tree in trees for episode in tree.episodes]

    def _to_decisions(
        self, environment: RetrievalEnvironment, sampler: Sampler, episodes: Sequence[Episode], seed: int
    ) -> None:
        """Take every episode to its next decision, or to its end: what stands before is sampled once."""
        while episodes := [episode for episode in episodes if not _decides(environment, episode)]:
            upcoming = [environment.next(episode, seed) for episode in episodes]
            acts = [(act.episode, environment.act(act)) for act in upcoming if isinstance(act, Act)]
            requests = [request for request in upcoming if isinstance(request, Request)]
            turns = [*acts, *zip([one.episode for one in requests], take_turns(sampler, requests), strict=True)]
            environment.apply([episode for episode, _ in turns], [turn for _, turn in turns])
            episodes = [episode for episode, _ in turns]

    def _decide(
        self,
        environment: RetrievalEnvironment,
        sampler: Sampler,
        forks: Sequence[Sequence[Episode]],
        beginnings: Sequence[tuple[int, ...]],
        seed: int,
    ) -> None:
        """Sample the decisions of all branches; where they have `beginnings`, one each, they get their weights."""
        requests: list[Request] = []
        longest = max(map(len, beginnings), default=1)  # for which there is room in all branches, or in none
        for episodes in forks:
            for branch, episode in enumerate(episodes):
                request = environment.next(episode, seed, at_least=longest)  # None where a budget ends the episode
                if isinstance(request, Request):
                    requests.append(replace(request, first_ids=beginnings[branch] if beginnings else ()))
        turns = take_turns(sampler, requests)
        environment.apply([request.episode for request in requests], turns)
        if beginnings:  # the branches of a root are alike before them: all have a decision, or none
            logps = [
                math.fsum(turn.action_logps[: len(request.first_ids)])
                for request, turn in zip(requests, turns, strict=True)
            ]
            for start in range(0, len(requests), len(beginnings)):
                branches = slice(start, start + len(beginnings))
                for request, weight in zip(requests[branches], branch_weights(logps[branches]), strict=True):
                    request.episode.weight = weight


def branch_weights(logps: Sequence[float]) -> list[float]:
    """Probabilities of branches divided by their mean: the weights of `TreeRollout`, from log-probabilities."""
    shares = [math.exp(logp - max(logps)) for logp in logps]
    return [len(shares) * share / math.fsum(shares) for share in shares]


@dataclass(slots=True)
class _Tree:
    """The episodes of a question so far, in the order of the branches."""

    episodes: list[Episode]
    branches: int = 1

    def fork(self, width: int, leaves: int) -> list[list[Episode]]:
        """Give every open episode `width` branches, itself among them, within `leaves`; returns those of each."""
        forks: list[list[Episode]] = []
        room = leaves - len(self.episodes)
        branched: list[Episode] = []
        for episode in self.episodes:
            own = [episode]
            if episode.status is None:
                more = min(width - 1, room)
                room -= more
                own += [_copy(episode, self.branches + number) for number in range(more)]
                self.branches += more
                forks.append(own)
            branched += own
        self.episodes = branched
        return forks


def _copy(episode: Episode, branch: int) -> Episode:
    """Another path through the same turns; its number, and so its later random numbers and uids, are its own."""
    return replace(episode, turns=list(episode.turns), sample=branch, truncations=Counter(episode.truncations))


def _decides(environment: RetrievalEnvironment, episode: Episode) -> bool:
    """Whether an episode is over or stands before a turn that trains."""
    if episode.status is not None:
        return True
    upcoming = environment.protocol.next(episode)
    return isinstance(upcoming, Request) and upcoming.trains
