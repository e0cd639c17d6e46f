"""What a reward samples is counted, and reaches the sampler behind."""

from __future__ import annotations

from envs.requests import Request
from envs.sampling import CountingSampler
from envs.types import Episode
from modules.samplers.in_process import InProcessSampler
from tests.tiny import question
from tests.toy_rl import small_policy


def request(sample: int, *, forced_ids: tuple[int, ...] | None = None) -> Request:
    return Request(Episode(question(), (1, 2), sample=sample), (), (), max_tokens=3, seed=sample, forced_ids=forced_ids)


def test_sampled_tokens_count_and_forced_ones_do_not() -> None:
    sampler = InProcessSampler(temperature=1.0)
    counting = CountingSampler(sampler)
    counting.load(small_policy())
    requests = [request(0), request(1), request(2, forced_ids=(3, 4))]
    counting.submit(requests)
    turns = [turn for _, turn in counting.collect()]
    assert counting.tokens == len(turns[0].action_ids) + len(turns[1].action_ids) > 0
    assert (counting.temperature, counting.top_p) == (1.0, 1.0)
    assert sampler._kept
    counting.release([one.episode for one in requests])
    assert not sampler._kept
