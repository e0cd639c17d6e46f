"""Trees as rollouts: how often each decision is sampled, what episodes share, what their weights are."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from common.errors import ConfigError
from envs.requests import Request
from envs.tree_rollout import TreeRollout, branch_weights
from envs.types import Episode
from tests.toy_agents import ASKER, PICKER, ROOT, agents_environment, agents_sampler, two_policies
from tests.toy_rl import Asked

QUESTIONS = list(Asked(6))


def grown(count: int = 6, *, seed: int = 0, iteration: int = 0, **settings: Any) -> list[list[Episode]]:
    """The episodes of each question's tree."""
    sampler = agents_sampler()
    sampler.load(two_policies())
    sample = TreeRollout(**settings)
    episodes = sample(agents_environment(), sampler, QUESTIONS[:count], group_size=1, seed=seed, iteration=iteration)
    assert all(episode.status == "answered" and episode.steps for episode in episodes)
    return [[e for e in episodes if e.question.id == question.id] for question in QUESTIONS[:count]]


def children(tree: list[Episode]) -> Counter[tuple[str, ...]]:
    """By the uids of the decisions down to a point, how many different decisions follow it."""
    paths = [tuple(turn.uid for turn in episode.turns if turn.trainable) for episode in tree]
    following = {(path[:depth], path[depth]) for path in paths for depth in range(len(path))}
    return Counter(parent for parent, _ in following)


def test_the_root_has_its_branches_two_levels_fork_and_later_decisions_do_not() -> None:
    seen: set[int] = set()
    for tree in grown(root=ROOT):
        for parent, count in children(tree).items():
            assert count == (2 if len(parent) <= 2 else 1), parent
            seen.add(len(parent))
        assert tree[0].turns[0].text == "a</subquery>", "it ends the turn"
        assert tree[-1].turns[0].text.startswith("b")
        assert len({id(turn) for e in tree for turn in e.turns}) == len({turn.uid for e in tree for turn in e.turns})
    assert seen >= {0, 1, 2, 3}


def test_a_tree_has_no_more_leaves_than_allowed_and_the_first_decisions_get_them() -> None:
    assert max(len(tree) for tree in grown(root=ROOT, depth=4, samples=3)) == 8
    for tree in grown(root=ROOT, leaves=4):
        assert len(tree) <= 4
        counts = children(tree)
        assert counts[()] == 2
    for tree in grown(root=ROOT, leaves=2):
        assert [episode.turns[0].text[0] for episode in tree] == ["a", "b"]


def test_without_given_branches_the_root_is_sampled_as_often_as_the_others() -> None:
    for tree in grown(depth=0, samples=3):
        assert len(tree) == children(tree)[()] == 3
        assert [episode.weight for episode in tree] == [1, 1, 1]


def test_branches_weigh_what_the_policy_gives_their_beginnings_and_all_below_weighs_the_same() -> None:
    environment, policy = agents_environment(), two_policies()[ASKER]
    for tree in grown(root=ROOT):
        (request,) = [environment.next(environment.start(tree[0].question), 0)]
        assert isinstance(request, Request)
        logps = []
        for text in ROOT:
            ids = environment.protocol.codec.control(text)
            logits = policy.model(torch.tensor([[*request.prefix(), *ids]])).logits[0]
            known = torch.log_softmax(logits[len(request.prefix()) - 1 : -1], dim=-1)
            logps.append(float(known[range(len(ids)), list(ids)].sum().detach()))
        first, second = (2 * math.exp(logp) / sum(map(math.exp, logps)) for logp in logps)
        for episode in tree:
            expected = first if episode.turns[0].uid == tree[0].turns[0].uid else second
            assert episode.weight == pytest.approx(expected, rel=1e-4)
    assert branch_weights([math.log(0.6), math.log(0.2)]) == pytest.approx([1.5, 0.5])
    assert branch_weights([-2000.0, -2000.0 + math.log(3)]) == pytest.approx([0.5, 1.5]), "no probability is too small"


def test_a_tree_is_the_same_alone_and_among_others_and_another_in_another_iteration() -> None:
    def ids(tree: list[Episode]) -> list[Any]:
        return [[(turn.uid, turn.action_ids) for turn in episode.turns] for episode in tree]

    together = grown(root=ROOT)
    assert ids(grown(1, root=ROOT)[0]) == ids(together[0])
    assert ids(grown(1, root=ROOT, iteration=1)[0]) != ids(together[0])
    assert len({len(tree) for tree in together}) > 1, "trees have different numbers of leaves"


def test_branches_that_share_a_decision_differ_below_it() -> None:
    pairs = 0
    for tree in grown(root=ROOT):
        for one, other in itertools.pairwise(tree):
            shared = sum(a is b for a, b in zip(one.turns, other.turns, strict=False))
            below = [episode.turns[shared] for episode in (one, other)]
            assert below[0].uid != below[1].uid
            pairs += below[0].action_ids != below[1].action_ids
    assert pairs > 3


def test_without_room_for_the_longest_beginning_no_branch_is_begun() -> None:
    """The longer of two beginnings has 12 tokens; within the limits one fewer is left, or just as many."""
    sampler = agents_sampler()
    sampler.load(two_policies())
    environment = agents_environment()
    begun = [environment.protocol.codec.control(text) for text in ROOT]
    prompt = environment.next(environment.start(QUESTIONS[0]), 0)
    assert isinstance(prompt, Request)
    for spare, statuses in ((-1, ["token_budget"]), (0, ["answered", "token_budget"])):
        total = len(prompt.prefix()) + max(map(len, begun)) + spare
        short = environment.variant(limits=replace(environment.limits, total_tokens=total))
        tree = TreeRollout(root=ROOT)(short, sampler, QUESTIONS[:1], group_size=1, seed=0, iteration=0)
        assert {episode.status for episode in tree} <= {*statuses}
        assert all(len(turn.context_ids or ()) + len(turn.action_ids) <= total for e in tree for turn in e.turns[:1])
        assert any(episode.turns for episode in tree) == (spare == 0)


def test_nothing_is_kept_of_finished_episodes() -> None:
    sampler = agents_sampler()
    sampler.load(two_policies())
    TreeRollout(root=ROOT)(agents_environment(), sampler, QUESTIONS, group_size=1, seed=0, iteration=0)
    for agent in (ASKER, PICKER):
        kept = sampler.samplers[agent]._store  # pyright: ignore
        assert (kept.bytes, kept.held) == (0, False)


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"depth": -1}, {"root": ROOT, "leaves": 1}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="tree rollout: samples"):
        TreeRollout(**wrong)


def test_a_tree_is_one_place_of_the_buffer() -> None:
    with pytest.raises(ConfigError, match=r"^group_size 4: a question's tree is one place of the buffer, so give 1$"):
        TreeRollout()(agents_environment(), agents_sampler(), [], group_size=4, seed=0, iteration=0)
