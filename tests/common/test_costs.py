"""Counts of several components, and what of a stage's figures is a cost."""

from __future__ import annotations

from collections import Counter

from common.costs import (
    JUDGE_CALLS,
    JUDGED_STEPS,
    UPDATES,
    costs_in,
    counted,
    read_by,
    split,
    tokens_in,
    tokens_of,
    tool_calls,
    tool_failures,
)


class Part:
    def __init__(self, **counts: int) -> None:
        self.counts = Counter(counts)


def test_components_that_count_are_added_up_and_each_counts_once() -> None:
    one, other = Part(a=1, b=2), Part(b=3)
    assert counted(one, other, object(), None, one) == {"a": 1, "b": 5}
    assert counted(object()) == {}


def test_figures_without_the_prefix_are_no_costs() -> None:
    counts = {tokens_of("policy"): 7, tokens_of("reader"): 5, JUDGE_CALLS: 3, "judge_no_reply": 2}
    assert costs_in(counts) == {"cost/tokens/policy": 7, "cost/tokens/reader": 5, "cost/judge_calls": 3}
    assert tokens_in(counts | {read_by("scorer"): 9}) == 12, "what is read is not sampled"


def test_the_costs_are_taken_out_of_the_metrics() -> None:
    metrics = {tokens_of("reader"): 5.0, "em": 0.5, tokens_of("policy"): 7.0, UPDATES: 16, "updates": 1.0}
    assert split(metrics) == (
        {"em": 0.5, "updates": 1.0},
        {"tokens": {"policy": 7, "reader": 5}, "updates": 16, "judge_calls": 0},
    )
    assert split({JUDGED_STEPS: 9.0})[1] == {"tokens": {}, "updates": 0, "judge_calls": 0, "judged_steps": 9}
    read = split({read_by("scorer"): 9.0, tokens_of("policy"): 7.0})[1]
    assert read == {"tokens": {"policy": 7}, "updates": 0, "judge_calls": 0, "read_tokens": {"scorer": 9}}
    assert split({JUDGE_CALLS: 4.0}) == ({}, {"tokens": {}, "updates": 0, "judge_calls": 4})
    asked = {tool_calls("sql"): 3.0, tool_calls("calc"): 2.0, tool_failures("sql"): 1.0}
    assert split(asked)[1] == {
        "tokens": {}, "updates": 0, "judge_calls": 0, "tool_calls": {"calc": 2, "sql": 3}, "tool_failures": {"sql": 1},
    }  # fmt: skip
