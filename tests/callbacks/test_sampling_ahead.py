"""Iterations that are sampled one ahead, in this process: by which policy, of which questions, at what cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from callbacks.budget import TokenBudget
from common.costs import read_by
from common.errors import ConfigError
from envs.rollout import independent_groups
from envs.types import Hit
from modules.functional.credit import grpo_credit
from tests.callbacks.test_rollout_callback import gap
from tests.callbacks.test_scored_groups import SETTINGS, Sampled
from tests.toy_rl import environment, learn, small_policy

CAPPED: dict[str, Any] = {"importance_cap": 2.0, "temperature": 0.7}


def ahead(folder: Path, sampled: Any = independent_groups, **settings: Any) -> tuple[Any, Any, dict[str, Any]]:
    return learn(folder, rollout={"overlap": 1, "sampling": sampled}, **(CAPPED | settings))


def test_update_k_trains_on_rollouts_of_the_policy_before_the_last_update(tmp_path: Path) -> None:
    _, watch, metrics = ahead(tmp_path, iterations=4, lr=1e-2, data={"updates": 2})
    for k, sampler in enumerate([0, 0, 1, 2]):
        assert gap(watch.before[sampler], watch.buffers[k]) <= 1e-4
        assert gap(watch.after[k], watch.buffers[k]) > 1e-3
        assert (gap(watch.before[k], watch.buffers[k]) <= 1e-4) == (k == 0)
    assert metrics["logp_gap/max"] == pytest.approx(gap(watch.before[3], watch.buffers[3]), rel=0.01)
    assert 0.5 < metrics["importance/weight"] < 0.99, "the ratio of two policies, cut at 2"


def test_questions_and_random_numbers_are_those_without_overlap(tmp_path: Path) -> None:
    """With a policy that does not move the episodes are the same."""
    one, other = Sampled(), Sampled()
    _, without, _ = learn(tmp_path, iterations=3, lr=1e-9, rollout={"sampling": one}, **CAPPED)
    _, watch, _ = ahead(tmp_path, other, iterations=3, lr=1e-9)
    assert other.calls == one.calls
    ids = [[[row.ids_T.tolist() for row in buffer] for buffer in each.buffers] for each in (without, watch)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("limit", [{"iterations": 2}, {"trainer": {"max_steps": 2}}, {"callbacks": [TokenBudget(250)]}])
def test_no_iteration_is_sampled_that_no_update_follows(tmp_path: Path, limit: dict[str, Any]) -> None:
    sampled = Sampled()
    _, watch, metrics = ahead(tmp_path, sampled, **({"iterations": 9} | limit))
    assert [iteration for iteration, _ in sampled.calls] == [0, 1]
    assert len(watch.buffers) == 2
    assert metrics["cost/tokens/policy"] == sum(sampled.tokens), "each counted in the iteration that it trains"
    assert metrics["tokens/rollout"] == sampled.tokens[1]


class Reader:
    """A compressor that leaves everything, and counts one token for each passage."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def compress(self, question: str, hits: Sequence[Hit]) -> list[Hit]:
        self.counts[read_by("compressor")] += len(hits)
        return list(hits)


def test_what_a_compressor_reads_is_counted_as_without_overlap(tmp_path: Path) -> None:
    """With a policy that does not move the episodes are the same."""
    read: list[float] = []
    for overlap in (0, 1):
        policy = small_policy()
        place, rollout = environment(policy, compressor=Reader()), {"overlap": overlap}
        learnt = learn(tmp_path, policy=policy, place=place, rollout=rollout, iterations=3, lr=1e-9, **CAPPED)
        read.append(learnt[2]["cost/read_tokens/compressor"])
    assert read[0] == read[1] > 0


def test_flat_groups_are_sampled_anew_by_the_current_policy(tmp_path: Path) -> None:
    sampled, settings = Sampled(), SETTINGS | {"credit": grpo_credit, "resample_rounds": 3}
    _, watch, metrics = ahead(tmp_path, sampled, **settings)
    order = [iteration for iteration, _ in sampled.calls]
    again = order.index(1)
    assert order[again - 1 :] == [0, 1, *[1] * (len(order) - again - 1)], "the next after what this one replaces"
    assert metrics["groups/resampled"] > 0
    assert len(watch.buffers[1]) == 16


def test_overlap_is_refused_without_weights_that_correct_for_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"overlap: 1 .* GRPO .* set the module's importance_cap: 2\.0") as refused:
        ahead(tmp_path, importance_cap=None)
    assert "\n" not in str(refused.value)
