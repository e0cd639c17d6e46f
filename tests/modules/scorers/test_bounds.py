"""What bounds a reward model: truth, log-probability, position, and scores dealt out anew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from common.errors import ConfigError
from envs.interfaces import RewardContext
from envs.protocols.prorag import ProRAG
from envs.types import Episode
from modules.rewards.process import process
from modules.scorers.log_prob import MeanLogProb
from modules.scorers.position import Position
from modules.scorers.shuffled import Shuffled
from modules.scorers.truth import Truth
from tests.steps import final, played, query, subanswer
from tests.tiny import byte_tokenizer

PROTOCOL = ProRAG(byte_tokenizer(), instruction="")  # pyright: ignore[reportArgumentType]
CONTEXT = RewardContext(PROTOCOL)
LONG = played(PROTOCOL, [query("Who?"), "nonsense </answer>", query("Who wrote it?"), subanswer("Ada"), final("Ada")])
SHORT = replace(played(PROTOCOL, [query("Who wrote it?"), subanswer("Ada"), final("Bob")]), sample=1)
OTHER = played(PROTOCOL, [query("Who read it?"), subanswer("Bob"), final("Bob")], identity="q2")


def rewards(scorer, *episodes: Episode) -> list[list[float]]:
    return [row.tolist() for row in process(episodes, CONTEXT, scorer=scorer)]


def test_the_truth_is_a_reward_of_1_or_0_and_nothing_where_it_is_unknown() -> None:
    class Oracle:
        def judge(self, episode: Episode):
            return type("Judgement", (), {"valid": (True, False, None)})

    scores = Truth(Oracle()).score([SHORT])[0]  # pyright: ignore[reportArgumentType]
    assert scores.sigmoid().tolist() == [1.0, pytest.approx(0, abs=1e-8), pytest.approx(math.nan, nan_ok=True)]


def test_on_the_chain_alone_a_true_claim_that_establishes_nothing_is_worth_nothing() -> None:
    class Oracle:
        def judge(self, episode: Episode):
            return type("Judgement", (), {"valid": (True, True, True, True, True), "settled": (0, 1, 0, 0, 0)})

    twice = played(PROTOCOL, [query("Who?"), subanswer("Ada"), query("Who?"), subanswer("Ada"), final("Ada")])
    made = Truth(Oracle(), on_chain=True)  # pyright: ignore[reportArgumentType]
    assert rewards(made, twice) == [pytest.approx([1, 1, 1, 0, 1], abs=1e-8)]


def test_the_log_prob_as_a_reward_is_the_geometric_mean_of_the_tokens_probabilities() -> None:
    episode = played(PROTOCOL, [query("Who wrote it?"), final("Ada")])
    for turn, first in zip(episode.turns, (0.5, 1.0), strict=True):
        rest = 0.125 if first < 1 else 1.0
        logps = [math.log(first if n % 2 else rest) for n in range(len(turn.action_ids) // 2 * 2)]
        turn.action_logps = tuple(logps)
        turn.action_ids = turn.action_ids[: len(logps)]
    episode.steps = PROTOCOL.steps(episode)
    query_score, answer_score = MeanLogProb().score([episode])[0].sigmoid().tolist()
    assert query_score == pytest.approx(0.25), "the root of .5 and .125"
    assert answer_score == pytest.approx(1.0, abs=1e-5), "certainty has a finite score too"
    silent = replace(episode, steps=(replace(episode.steps[0], spans=()),))
    assert math.isnan(MeanLogProb().score([silent])[0][0])


def test_position_as_a_reward_falls_from_step_to_step() -> None:
    expected = [[1 / (1 + math.e**place) for place in range(3)]]
    assert rewards(Position(), SHORT) == [pytest.approx(row) for row in expected]


class Numbers:
    """Scores all steps apart: .1, .2, .3 ... through the episodes of a call."""

    def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
        counts = [len(episode.steps) for episode in episodes]
        values = torch.arange(1, sum(counts) + 1).float() / 10
        return list(values.split(counts))


def test_shuffled_scores_are_those_of_the_question_at_other_steps() -> None:
    dealt = Shuffled(Numbers()).score([LONG, SHORT, OTHER])
    given = [n / 10 for n in range(1, 9)]
    of_question = torch.cat([dealt[0], dealt[1]])
    assert of_question.sort().values.tolist() == pytest.approx(given)
    assert of_question.tolist() != pytest.approx(given)
    assert sorted(dealt[2].tolist()) == pytest.approx([0.9, 1.0, 1.1]), "another question's scores stay its own"


def test_shuffled_scores_stay_within_their_kind() -> None:
    """Else they would say something of a step that the scorer knows the kind of alone."""
    dealt = Shuffled(Numbers()).score([LONG, SHORT])
    queries = {
        round(float(row[s]), 4)
        for row, e in zip(dealt, (LONG, SHORT), strict=True)
        for s in range(len(row))
        if e.steps[s].kind == "query"
    }
    assert queries == {0.1, 0.3, 0.6}
    assert {round(float(dealt[0][4]), 4), round(float(dealt[1][2]), 4)} == {0.5, 0.8}, "the two answers"


def test_shuffled_within_a_call_scores_go_to_other_questions_too() -> None:
    seen = set()
    for seed in range(5):
        dealt = Shuffled(Numbers(), within="call", seed=seed).score([LONG, SHORT, OTHER])
        answers = [round(float(row[-1]), 4) for row in dealt]  # the last step of each
        assert sorted(answers) == [0.5, 0.8, 1.1]
        seen.add(answers[2])
    assert len(seen) > 1, "the other question's answer has scores of other questions"
    with pytest.raises(ConfigError, match="must be 'question' or 'call'"):
        Shuffled(Numbers(), within="kind")


def test_dealt_within_a_call_scores_rank_no_better_than_chance() -> None:
    """One episode a question, the second half wrong: within its question every answer keeps its score."""
    episodes = [replace(SHORT, question=replace(SHORT.question, id=str(n))) for n in range(400)]
    wrong = np.arange(400) >= 200

    def auc(within: str) -> float:
        answers = np.array([float(row[-1]) for row in Shuffled(Numbers(), within=within).score(episodes)])
        return float((answers[wrong][:, None] > answers[~wrong]).mean())

    assert auc("question") == 1
    assert auc("call") == pytest.approx(0.5, abs=0.1)


def test_a_step_out_of_format_keeps_its_own_score() -> None:
    assert [step.valid for step in LONG.steps] == [True, False, True, True, True]
    for seed in range(5):
        dealt = Shuffled(Numbers(), seed=seed).score([LONG, SHORT])[0]
        assert float(dealt[1]) == pytest.approx(0.2)


def test_shuffled_scores_are_a_function_of_the_question_s_episodes_and_the_seed() -> None:
    def order(seed: int, *episodes: Episode) -> list[list[float]]:
        return [row.tolist() for row in Shuffled(Numbers(), seed=seed).score(episodes)]

    assert order(0, LONG, SHORT) == order(0, LONG, SHORT, OTHER)[:2], "whatever else is scored with them"
    assert order(0, LONG, SHORT) != order(1, LONG, SHORT)
    later = [replace(episode, iteration=1) for episode in (LONG, SHORT)]
    assert order(0, *later) != order(0, LONG, SHORT)


def test_an_unknown_score_is_dealt_to_nobody() -> None:
    class Partly(Numbers):
        def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
            scores = super().score(episodes)
            scores[0][0] = math.nan
            return scores

    dealt = Shuffled(Partly()).score([SHORT, LONG])
    assert [bool(row.isnan().any()) for row in dealt] == [True, False]
    assert math.isnan(dealt[0][0])
