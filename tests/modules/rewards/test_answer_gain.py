"""What searches add to the probability of the gold answer, by hand; what is asked is the answer's tokens alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common.errors import ConfigError
from envs.interfaces import RewardContext, Sampler
from envs.protocols.prorag import ProRAG
from envs.requests import Request
from envs.types import Episode
from modules.functional.credit import turn_returns_credit
from modules.rewards.answer_gain import answer_gain, answer_score, gains
from modules.rewards.terms import Term
from modules.samplers.in_process import InProcessSampler
from tests import steps as said
from tests.tiny import byte_tokenizer, tiny_policy
from tests.toy_rl import learn, letters

PROTOCOL = ProRAG(byte_tokenizer(), instruction="")  # pyright: ignore[reportArgumentType]
LOG = math.log
TWICE = [said.query("Who?"), said.subanswer("Bob"), said.query("Who wrote?"), said.subanswer("Ada"), said.final("Ada")]


class Reader(Sampler):
    """Gives the tokens of an answer a probability of .1, with one search before them .3, with two .25."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []

    def score(self, requests: Sequence[Request]) -> list[tuple[float, ...]]:
        scores: list[tuple[float, ...]] = []
        for request in requests:
            prefix, ids = PROTOCOL.codec.decode(request.prefix()), request.forced_ids or ()
            self.asked.append((prefix, PROTOCOL.codec.decode(ids)))
            scores.append((LOG([0.1, 0.3, 0.25][prefix.count("Ada wrote it.")]),) * len(ids))
        return scores


def gained(*episodes: Episode, sampler: Sampler | None = None, **settings: Any) -> list[list[float]]:
    rewards = answer_gain(episodes, RewardContext(PROTOCOL, sampler or Reader()), **settings)
    return [row.tolist() for row in rewards]


@pytest.mark.parametrize(("difference", "expected"), [("prob", [0.2, -0.05]), ("log", [1.098612, -0.182322])])
def test_a_gain_is_the_change_of_the_answer_s_probability_or_of_its_log(difference: Any, expected: list[float]) -> None:
    scores = torch.tensor([0.1, 0.3, 0.25]).log()
    assert gains(scores, difference=difference).tolist() == pytest.approx(expected, abs=1e-6)
    assert gains([LOG(0.5)]).tolist() == []
    unknown = gains([LOG(0.1), math.nan, LOG(0.3), LOG(0.4)]).tolist()
    assert unknown == pytest.approx([math.nan, math.nan, 0.1], abs=1e-6, nan_ok=True)


def test_the_first_tokens_of_an_answer_may_weigh_more() -> None:
    five = [-1.0, -1.0, -1.0, -2.0, -2.0]
    assert answer_score(five, first_weight=3.0) == pytest.approx(-1.181818, abs=1e-6)
    assert answer_score(five) == pytest.approx(-1.4)


def test_an_answer_that_stands_in_a_tag_too_is_found_in_its_place() -> None:
    reader, episode = Reader(), said.played(PROTOCOL, TWICE)
    gained(replace(episode, question=replace(episode.question, answers=("a",))), sampler=reader)
    assert {(prefix[-9:], ids) for prefix, ids in reader.asked} == {("<answer>\n", "a")}


def test_a_search_has_the_gain_of_what_it_found_and_other_steps_have_none() -> None:
    reader = Reader()
    episode = said.played(PROTOCOL, TWICE)
    assert gained(episode, sampler=reader) == [pytest.approx([0.2, 0, -0.05, 0, 0], abs=1e-6)]
    assert [ids for _, ids in reader.asked] == ["Ada"] * 3
    first, second, third = (prefix for prefix, _ in reader.asked)
    assert first.endswith("<step>\n </step>\n<answer>\n")
    assert second == first.removesuffix(" </step>\n<answer>\n") + TWICE[0] + second[second.index("\n<retrieval>") :]
    assert second.endswith("</retrieval>\n<step>\n </step>\n<answer>\n")
    assert TWICE[1] in third
    assert TWICE[3] not in third


def test_it_may_be_scored_after_the_claim_that_reads_the_search_and_after_a_thought() -> None:
    reader = Reader()
    gained(said.played(PROTOCOL, TWICE), sampler=reader, after="step", thought="I know.")
    assert TWICE[1] in reader.asked[1][0]
    assert TWICE[3] in reader.asked[2][0]
    assert reader.asked[2][0].endswith("<step>\nI know. </step>\n<answer>\n")


def test_of_several_answers_the_first_the_best_or_all_count() -> None:
    class Aliases(Reader):
        def score(self, requests: Sequence[Request]) -> list[tuple[float, ...]]:
            known = {("Ada", 0): -1.0, ("Eve", 0): -2.0, ("Ada", 1): -0.5, ("Eve", 1): -2.0}
            asked = super().score(requests) and self.asked[-len(requests) :]
            return [(known[text, prefix.count("wrote it.")],) * len(text) for prefix, text in asked]

    episode = said.played(PROTOCOL, TWICE[:1])
    episode = replace(episode, question=replace(episode.question, answers=("Ada", "Eve")))
    settings = {"sampler": Aliases(), "difference": "log"}
    assert gained(episode, **settings, aliases="first") == [[pytest.approx(0.5)]]
    assert gained(episode, **settings, aliases="max") == [[pytest.approx(0.5)]]
    [[potential]] = gained(episode, **settings, aliases="logsumexp")
    assert potential == pytest.approx(-0.298587 + 0.686738, abs=1e-6)
    assert gained(episode, **settings, aliases="logsumexp", scale=0.02) == [[pytest.approx(0.007763, abs=1e-6)]]


def test_the_baseline_may_be_the_passages_of_other_questions() -> None:
    one, other = said.played(PROTOCOL, TWICE[:1]), said.played(PROTOCOL, TWICE[:1], identity="q2")
    other.turns[0].observation_ids = PROTOCOL.codec.control("\n<retrieval>\nNothing.\n</retrieval>")
    reader = Reader()
    assert gained(one, other, sampler=reader, baseline="random") == [[pytest.approx(0.2)], [pytest.approx(-0.2)]]
    assert len(reader.asked) == 2 * (1 + 3)
    assert gained(one, baseline="random") == [[pytest.approx(math.nan, nan_ok=True)]], "there is no other question"


def test_what_does_not_fit_the_model_is_unknown_and_never_0() -> None:
    episode = said.played(PROTOCOL, TWICE)
    config = SimpleNamespace(max_position_embeddings=len(episode.context()) - 80)
    short = type("Short", (Reader,), {"model": SimpleNamespace(config=config)})()
    [row] = gained(episode, sampler=short)
    assert row == pytest.approx([0.2, 0, math.nan, 0, 0], nan_ok=True, abs=1e-6)


def test_it_needs_log_probs_of_tokens_that_were_not_sampled() -> None:
    episode = said.played(PROTOCOL, TWICE)
    with pytest.raises(ConfigError, match="give it a `scorer`"):
        answer_gain([episode], RewardContext(PROTOCOL))
    with pytest.raises(ConfigError, match="score with InProcessSampler"):
        gained(episode, sampler=Sampler())
    with pytest.raises(ConfigError, match="draws 0: answer_gain compares a search with at least 1 other"):
        gained(episode, baseline="random", draws=0)


def test_a_policy_gives_the_same_gain_alone_and_among_others_and_a_frozen_scorer_is_counted() -> None:
    sampler = InProcessSampler(tiny_policy(PROTOCOL.codec.tokenizer))  # pyright: ignore[reportArgumentType]
    episodes = said.episodes(PROTOCOL)
    together = gained(*episodes, sampler=sampler)
    for episode, row in zip(episodes, together, strict=True):
        assert gained(episode, sampler=sampler) == [pytest.approx(row, abs=1e-6)]
    assert together[0][0] != 0 == together[1][0]
    context, before = RewardContext(PROTOCOL), sampler.counts["cost/read_tokens/policy"]
    frozen = answer_gain(episodes, context, scorer=sampler)
    assert [row.tolist() for row in frozen] == [pytest.approx(row, abs=1e-6) for row in together]
    assert 0 < context.counts["cost/read_tokens/policy"] == sampler.counts["cost/read_tokens/policy"] - before


def test_it_is_a_step_reward_of_a_run(tmp_path: Path) -> None:
    rewards = {"letters": Term(letters), "gain": Term(answer_gain, level="step")}
    credit = partial(turn_returns_credit, normalise="separate")
    _, watch, metrics = learn(tmp_path, iterations=1, rewards=rewards, credit=credit)
    assert metrics["rewards/gain/mean"] == metrics["rewards/gain/mean"]
    assert metrics["cost/read_tokens/policy"] > 0
    assert any(row.channels["advantages"].any() for row in watch.buffers[0])
