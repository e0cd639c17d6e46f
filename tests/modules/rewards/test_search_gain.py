"""Gains of searches, their queries and their confidence, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from common.errors import ConfigError
from envs.interfaces import RewardContext
from envs.protocols.prorag import ProRAG
from envs.types import Document, Episode, Gold, GoldStep, Hit
from modules.rewards.confident_queries import confident_queries
from modules.rewards.hop_progress import progress
from modules.rewards.search_gain import coverage_gain, key_queries, search_gain
from tests import steps as said
from tests.tiny import byte_tokenizer

PROTOCOL = ProRAG(byte_tokenizer(), instruction="")  # pyright: ignore[reportArgumentType]
CONTEXT = RewardContext(PROTOCOL)
ROUNDS = [said.query("Who wrote Lum?"), said.query("Where was he born?"), said.final("Ada")]
GOLD = Gold(
    steps=(GoldStep("Who wrote Lum?", "Bob"), GoldStep("Where was #1 born?", "Oslo")),
    documents=("g1", "g2"),
    titles=("Lum", "Bob (poet)"),
)


def searched(*found: str, gold: Gold | None = GOLD) -> Episode:
    """An episode whose searches find these passages, named by letters apart from blanks; then it answers."""
    episode = said.played(PROTOCOL, [*ROUNDS[: len(found)], ROUNDS[2]])
    hits = [tuple(Hit(Document(name, name.upper(), "")) for name in names.split()) for names in found]
    steps = tuple(replace(step, hits=own) for step, own in zip(episode.steps, [*hits, ()], strict=True))
    return replace(episode, steps=steps, question=replace(episode.question, gold=gold))


def test_a_gain_is_what_the_best_coverage_of_gold_passages_grows_by() -> None:
    assert coverage_gain(torch.tensor([[0.8, 0.2], [0.5, 0.9]])).tolist() == pytest.approx([0.5, 0.35])
    assert coverage_gain(torch.zeros(0, 2)).tolist() == []


def test_a_search_earns_new_gold_passages_and_pays_for_repeated_ones() -> None:
    episode = searched("g1 x", "g2 y x")
    [rewards] = search_gain([episode], CONTEXT, scale=1.0)
    assert rewards.tolist() == pytest.approx([0.5, 0.5 - 1 / 3, 0])
    [scaled] = search_gain([episode], CONTEXT)
    assert scaled.tolist() == pytest.approx([0.3, 0.6 * (0.5 - 1 / 3), 0])
    [free] = search_gain([searched("g1", "g1 g1")], CONTEXT, scale=1.0, penalty=0.0)
    assert free.tolist() == [0.5, 0, 0], "found again it gains nothing"
    [twice] = search_gain([searched("x x", "")], CONTEXT, scale=1.0)
    assert twice.tolist() == [-0.5, 0, 0], "a search that found nothing is not redundant"


def test_titles_are_compared_without_case_and_a_question_without_gold_is_unknown() -> None:
    episode = searched("lum")
    assert search_gain([episode], CONTEXT, match="title", scale=1.0)[0].tolist() == [0.5, 0]
    [unknown] = search_gain([searched("x", gold=None)], CONTEXT)
    assert unknown.tolist() == pytest.approx([math.nan, 0], nan_ok=True)
    assert search_gain([searched(gold=None)], CONTEXT)[0].tolist() == [0], "it searched for nothing"


def test_progress_is_the_share_of_the_hops_that_a_step_settles_first_or_of_the_gold_passages() -> None:
    class Oracle:
        def __init__(self, settled: tuple[int | None, ...], left: int | None) -> None:
            self.settled, self.open = settled, left

        def judge(self, episode: Episode):
            return self

    def shares(*settled: int | None, left: int | None) -> list[float]:
        return progress([searched("x")], CONTEXT, oracle=Oracle(settled, left))[0].tolist()  # pyright: ignore

    assert shares(0, 1, 0, 2, left=1) == [0, 0.25, 0, 0.5]
    assert shares(0, 0, left=3) == [0, 0]
    assert shares(None, None, left=None) == pytest.approx([math.nan] * 2, nan_ok=True)
    assert progress([searched("x", "g1 x"), searched("g1 g2", "g1")], CONTEXT)[0].tolist() == [0, 0.5, 0]
    assert progress([searched("g1 g2", "g1")], CONTEXT)[0].tolist() == [1, 0, 0]
    assert progress([searched("lum")], CONTEXT, match="title")[0].tolist() == [0.5, 0]


def test_key_queries_are_the_best_match_of_each_gold_sub_question() -> None:
    # The first is said word for word; of "where was bob born" and "where was he born" 3 of 4 words are the same.
    rewards = key_queries([searched("a", "b"), searched("a"), searched(), searched("a", gold=None)], CONTEXT)
    expected = [0.618 * (1 + 0.75) / 2, 0.618 * 0.5, 0, math.nan]
    assert rewards.tolist() == pytest.approx(expected, nan_ok=True)


def confident(*probabilities: float, text: str = "x", **settings: Any) -> float:
    """The reward of a right answer after a search whose query has these probabilities, one a byte."""
    episode = said.played(PROTOCOL, [said.query("q" * len(probabilities)), said.final("Ada")])
    turn = episode.turns[0]
    start = turn.text.index("qq")
    logps = [-9.0] * len(turn.action_ids)
    ids = PROTOCOL.codec.token_index(turn.action_ids, [start, start + len(probabilities)])
    logps[ids[0] : ids[1]] = [math.log(p) for p in probabilities]
    turn.action_logps = tuple(logps)
    return float(confident_queries([episode], CONTEXT, **settings))


def test_a_right_answer_counts_if_no_token_of_a_query_is_improbable() -> None:
    assert confident(0.9, 0.5, 0.35) == 0, "thoughts and tags may be improbable"
    assert confident(0.9, 0.5, 0.35, beta=0.3) == 1
    direct, wrong = said.played(PROTOCOL, [said.final("Ada")]), said.played(PROTOCOL, [said.final("Bob")])
    assert confident_queries([direct, wrong], CONTEXT).tolist() == [1, 0]
    with pytest.raises(ConfigError, match=r"beta 1\.5 must be in"):
        confident(0.9, 0.5, beta=1.5)


def test_scripted_queries_do_not_count_and_a_query_that_is_nowhere_in_its_turn_is_unknown() -> None:
    episode = said.played(PROTOCOL, [said.query("qq"), said.final("Ada")])
    episode.turns[0].action_logps = (-9.0,) * len(episode.turns[0].action_ids)
    assert float(confident_queries([episode], CONTEXT)) == 0
    episode.turns[0].action = replace(episode.turns[0].action, text="elsewhere")
    assert math.isnan(float(confident_queries([episode], CONTEXT)))
    episode.turns[0].finish = "scripted"
    assert float(confident_queries([episode], CONTEXT)) == 1
