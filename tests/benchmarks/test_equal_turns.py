"""Episodes of known work: what is asked for is what is sampled, in one length or in many."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.equal_turns import WORLD_BASE, Work, equal_turns
from envs.rollout import rollout
from envs.types import Episode, Question
from modules.policy import load_policy
from modules.samplers.in_process import InProcessSampler

WORK = Work(questions=3, group=4, turns=3, turn_tokens=9, observation=5, prompt=8)
QUESTIONS = [Question(f"q{i}", f"who is q{i}?", ("a",)) for i in range(WORK.questions)]


def sampled(work: Work, iteration: int = 0) -> list[Episode]:
    sampler = InProcessSampler(load_policy(str(WORLD_BASE), device="cpu"), temperature=1.0)
    return rollout(
        equal_turns(WORLD_BASE, work), sampler, QUESTIONS, seed=0, samples=work.group, iteration=iteration, pool=12
    )


def lengths(episodes: list[Episode]) -> list[list[int]]:
    """Tokens of every turn that the end-of-message token did not end."""
    return [[len(turn.action_ids) if turn.finish == "length" else -1 for turn in one.turns] for one in episodes]


def test_all_turns_are_of_one_length() -> None:
    assert {length for turns in lengths(sampled(WORK)) for length in turns} <= {9, -1}
    assert {len(episode.turns) for episode in sampled(WORK)} == {3}


def test_mixed_lengths_are_the_same_in_every_iteration() -> None:
    mixed = replace(WORK, mixed=True)
    first, second = (sampled(mixed, iteration) for iteration in (0, 1))
    turns = [len(episode.turns) for episode in first]
    assert set(turns) == {1, 2, 3}
    assert turns == [len(episode.turns) for episode in second]
    for one, other in zip(lengths(first), lengths(second), strict=True):
        assert all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))
    drawn = {length for turns in lengths(first) for length in turns} - {-1}
    assert drawn <= set(range(3, 10))
    assert len(drawn) > 3
    assert max(len(episode.context()) for episode in first) < mixed.context
