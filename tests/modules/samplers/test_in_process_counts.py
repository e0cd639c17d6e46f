"""What the in-process sampler counts: every token that it sampled, by agent, and nothing else."""

from __future__ import annotations

from envs.requests import Request
from envs.sampling import ByAgent, take_turns
from envs.types import Episode
from modules.samplers.in_process import InProcessSampler
from tests.tiny import question
from tests.toy_rl import small_policy


def request(sample: int, agent: str = "policy", **given: tuple[int, ...]) -> Request:
    episode = Episode(question(), (1, 2), sample=sample)
    return Request(episode, (), (), agent=agent, max_tokens=3, seed=sample, **given)


def test_the_given_beginning_of_a_turn_does_not_count() -> None:
    sampler = InProcessSampler(small_policy(), temperature=1.0)
    sampler.submit([request(0, first_ids=(3, 4))])
    [(_, turn)] = sampler.collect()
    assert sampler.counts == {"cost/tokens/policy": len(turn.action_ids) - 2}


def test_sampled_tokens_count_by_agent_and_forced_ones_do_not() -> None:
    sampler = InProcessSampler(small_policy(), temperature=1.0)
    asked = [request(0), request(1, "reader"), request(2, "reader"), request(3, forced_ids=(3, 4))]
    lengths = [len(turn.action_ids) for turn in take_turns(sampler, asked)]
    assert sampler.counts == {"cost/tokens/policy": lengths[0], "cost/tokens/reader": lengths[1] + lengths[2]}
    sampler.submit([request(4)])
    sampler.release([one.request.episode for one in sampler._waiting])
    assert sampler.collect() == []
    assert sampler.counts["cost/tokens/policy"] == lengths[0], "what is given up before it is sampled costs nothing"


def test_agents_may_share_a_sampler() -> None:
    one, other = InProcessSampler(small_policy(), temperature=1.0), InProcessSampler(small_policy(), temperature=1.0)
    routed = ByAgent({"policy": one, "reader": one, "judge": other})
    routed.submit([request(0), request(1, "reader"), request(2, "judge")])
    tokens: dict[str, int] = {}
    while len(tokens) < 3:
        tokens |= {request.agent: len(turn.action_ids) for request, turn in routed.collect()}
    assert routed.counts == {f"cost/tokens/{agent}": count for agent, count in tokens.items()}
