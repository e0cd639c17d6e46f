"""What answers, formats and steps are worth, and how terms add up; what could not be scored is never a number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from common.costs import JUDGE_CALLS
from common.errors import ConfigError, EngineError, RetrievalError
from envs.interfaces import RewardContext
from envs.protocols.prorag import ProRAG
from envs.types import Action, Document, Episode, Hit, Status, Turn
from modules.rewards.abstention import answer_or_abstain
from modules.rewards.answer import answer_exact, answer_f1
from modules.rewards.format import step_format, trajectory_format
from modules.rewards.judged_answer import judged_answer
from modules.rewards.limits import within_limits
from modules.rewards.process import process
from modules.rewards.terms import NAN, IterationReward, Scores, Term, Total, combine, read_terms, settled
from tests.tiny import byte_tokenizer, question

PROTOCOL = ProRAG(byte_tokenizer(), instruction="")  # pyright: ignore[reportArgumentType]
CONTEXT = RewardContext(PROTOCOL)
QUERY = "I search. </step>\n<subquery> Who? </subquery>"
SUB = "It is Ada. </step>\n<subanswer> Ada </subanswer>"
FINAL = "So it is. </step>\n<answer> {} </answer>"
BARE = "Who? </step> <subquery> a </subquery> <subquery> b </subquery>"


def episode(*texts: str, status: Status = "answered", document: str = "Ada wrote it.") -> Episode:
    """An episode of these turns, read as the environment reads them."""
    made = Episode(question(answer="Ada Lovelace"), (1, 2), status=status)
    for number, text in enumerate(texts):
        ids = PROTOCOL.codec.control(text)
        turn = Turn("policy", (), ids, (-1.0,) * len(ids), "stop", f"q/{number}", text=text)
        turn.action = PROTOCOL.parse(made, turn)
        if turn.action.kind == "query":
            turn.hits = (Hit(Document("d", "Ada", document), 1.0),)
        made.turns.append(turn)
    made.steps, made.answer = PROTOCOL.steps(made), PROTOCOL.answer(made)
    return made


RIGHT = episode(QUERY, SUB, FINAL.format("Ada Lovelace"))
HALF = episode(QUERY, SUB, FINAL.format("Ada of the long name"))
SILENT = episode(QUERY, SUB, status="step_budget")
FAILED = episode(QUERY, status="error")


def test_the_answer_s_f1_is_the_reward() -> None:
    f1 = 2 * 1 / (4 + 2)  # "ada of long name" against "ada lovelace"
    assert answer_f1([RIGHT, HALF, SILENT], CONTEXT).tolist() == pytest.approx([1, f1, 0])


def test_the_released_code_s_f1_is_doubled_and_has_a_dead_zone() -> None:
    faint = episode(FINAL.format("Ada " + " ".join("bcdefghijk")))  # F1 2/13
    official = partial(answer_f1, scale=2.0, zero_below=0.2)
    assert official([RIGHT, HALF, faint], CONTEXT).tolist() == pytest.approx([2, 2 / 3, 0])


def test_exact_match_is_all_or_nothing() -> None:
    assert answer_exact([RIGHT, HALF, SILENT], CONTEXT).tolist() == [1, 0, 0]


def test_steps_follow_the_format_or_not() -> None:
    mixed = episode(QUERY, BARE, FINAL.format("x"))
    assert [row.tolist() for row in step_format([mixed, SILENT], CONTEXT)] == [[1, 0, 1], [1, 1]]
    assert step_format([mixed], CONTEXT, valid=1.0, invalid=-2.0)[0].tolist() == [1, -2, 1]


def test_whole_episodes_follow_the_format_or_not() -> None:
    alone, unread = episode(FINAL.format("x")), episode(QUERY, FINAL.format("x"))
    assert trajectory_format([RIGHT, SILENT, alone, unread], CONTEXT, invalid=-1.0).tolist() == [1, -1, -1, -1]
    lenient = RewardContext(ProRAG(byte_tokenizer(), instruction="", min_hops=0))  # pyright: ignore
    assert trajectory_format([alone], lenient).tolist() == [1], "the released code accepts an answer without a search"


@pytest.mark.parametrize("text", ["Ada <i>wrote</i> it.", "</answer> <answer> x </answer>", "</step> <subquery>"])
def test_what_a_passage_says_changes_no_verdict(text: str) -> None:
    poisoned = episode(QUERY, SUB, FINAL.format("Ada Lovelace"), document=text)
    for reward in (answer_f1, trajectory_format):
        assert torch.equal(reward([poisoned], CONTEXT), reward([RIGHT], CONTEXT))
    assert step_format([poisoned], CONTEXT)[0].tolist() == [1, 1, 1]


class Scorer:
    """Scores steps 0, 1, 2 ... and remembers how many episodes it saw at once."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
        self.batches.append(len(episodes))
        return [torch.arange(len(one.steps)).float() for one in episodes]


def test_process_scores_are_probabilities_and_nothing_out_of_format() -> None:
    scorer = Scorer()
    squashed = process([RIGHT, SILENT], CONTEXT, scorer=scorer)
    assert [row.tolist() for row in squashed] == [
        pytest.approx([0.5, 0.731059, 0.880797]),
        pytest.approx([0.5, 0.731059]),
    ]
    assert scorer.batches == [2], "one call for all"
    mixed = episode(QUERY, BARE, SUB)
    assert process([mixed], CONTEXT, scorer=scorer)[0].tolist() == [0.5, 0.0, pytest.approx(0.880797)]


def test_an_episode_without_a_step_is_scored_beside_the_others() -> None:
    """Its prompt left no room for a turn."""
    empty = episode(status="token_budget")
    scores = combine({"prm": Term(partial(process, scorer=Scorer()), level="step")}, [empty, SILENT], CONTEXT)
    assert not scores.failures
    assert scores.step_mask_BS.tolist() == [[False, False], [True, True]]
    assert scores.step_BS[1].tolist() == pytest.approx([0.5, 0.731059])


def test_episodes_that_a_limit_cut_train_nothing_and_are_compared_with_nothing() -> None:
    cut = [episode(QUERY, status=status) for status in ("step_budget", "token_budget")]
    ended = [RIGHT, episode(QUERY, status="malformed")]
    terms = {"answer": Term(answer_exact), "limits": Term(within_limits)}
    assert combine(terms, [*ended, *cut], CONTEXT).outcome_B.tolist() == pytest.approx([1, 0, NAN, NAN], nan_ok=True)
    terms = {"answer": Term(answer_exact), "limits": Term(within_limits, weight=0.0)}
    assert combine(terms, [*ended, *cut], CONTEXT).outcome_B.tolist() == [1, 0, 0, 0], (
        "with weight 0 it is logged alone"
    )


def paper(scorer: Scorer | None = None, nu: float = 0.2) -> dict[str, Term]:
    return {
        "answer_f1": Term(answer_f1),
        "trajectory_format": Term(trajectory_format, nu),
        "prm": Term(partial(process, scorer=scorer or Scorer()), level="step"),
        "step_format": Term(step_format, nu, "step"),
    }


def test_eqs_5_and_6_add_terms_by_their_weights() -> None:
    mixed = episode(QUERY, BARE)
    scores = combine(paper(), [RIGHT, HALF, mixed], CONTEXT)
    assert scores.outcome_B.tolist() == pytest.approx([1.2, 1 / 3 + 0.2, 0])
    assert scores.step_BS[0].tolist() == pytest.approx([0.7, 0.931059, 1.080797])
    assert scores.step_BS[2].tolist() == pytest.approx([0.7, 0, 0])
    assert scores.step_mask_BS.tolist() == [[True] * 3, [True] * 3, [True, True, False]]
    assert scores.breakdown["step_format"].tolist() == [[1, 1, 1], [1, 1, 1], [1, 0, 0]], "unweighted"
    assert scores.breakdown["answer_f1"].tolist() == pytest.approx([1, 1 / 3, 0])


def test_an_error_is_no_number_and_nobody_is_asked_about_it() -> None:
    scorer = Scorer()
    scores = combine(paper(scorer), [RIGHT, FAILED], CONTEXT)
    assert scorer.batches == [1]
    assert scores.outcome_B[0] == pytest.approx(1.2)
    assert math.isnan(scores.outcome_B[1])
    assert scores.step_BS[1].isnan().tolist() == [True, False, False]
    assert scores.breakdown["answer_f1"].isnan().tolist() == [False, True]
    alone = combine(paper(), [FAILED, FAILED], CONTEXT)
    assert bool(alone.outcome_B.isnan().all())
    assert bool(alone.step_BS.isnan().all())


@pytest.mark.parametrize("outage", [RetrievalError("server down"), ConnectionError("refused"), TimeoutError("late")])
def test_an_outage_is_nan_with_its_reason_never_a_number(outage: Exception) -> None:
    def down(episodes, context):
        raise outage

    scores = combine({"f1": Term(answer_f1), "prm": Term(down, level="step")}, [RIGHT, HALF], CONTEXT)
    assert bool(scores.step_BS.isnan().all())
    assert scores.outcome_B.tolist() == pytest.approx([1, 1 / 3])
    assert scores.failures == {"prm": str(outage)}
    assert bool(combine({"f1": Term(down)}, [RIGHT], CONTEXT).outcome_B.isnan().all())


def test_a_bug_a_wrong_setting_or_a_lost_engine_is_no_outage() -> None:
    def bug(episodes, context):
        raise KeyError("bug")

    def wrong(episodes, context):
        raise ConfigError("wrong")

    def lost(episodes, context):
        raise EngineError("gone for good")

    for reward, error in ((bug, KeyError), (wrong, ConfigError), (lost, EngineError)):
        with pytest.raises(error):
            combine({"x": Term(reward)}, [RIGHT], CONTEXT)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_makes_the_sum_none(value: float) -> None:
    def odd(episodes, context):
        return torch.tensor([value, 1.0])

    scores = combine({"f1": Term(answer_f1), "odd": Term(odd, 0.5)}, [RIGHT, HALF], CONTEXT)
    assert scores.outcome_B.isnan().tolist() == [True, False]
    assert scores.outcome_B[1] == pytest.approx(1 / 3 + 0.5)
    watched = combine({"f1": Term(answer_f1), "odd": Term(odd, 0.0)}, [RIGHT, HALF], CONTEXT)
    assert watched.outcome_B.tolist() == pytest.approx([1, 1 / 3]), "a weight of 0 only watches"
    assert watched.breakdown["odd"][1] == 1


def test_steps_that_the_policy_did_not_sample_have_no_reward() -> None:
    scripted = episode(QUERY, FINAL.format("x"))
    scripted.steps = (scripted.steps[0].__class__("query", True, (), query="q"), scripted.steps[1])
    scores: Scores = combine({"format": Term(step_format, level="step")}, [scripted], CONTEXT)
    assert scores.step_mask_BS.tolist() == [[False, True]]
    assert scores.step_BS.tolist() == [[0, 1]]


def test_a_reward_of_the_other_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="reward f1 has level step"):
        combine({"f1": Term(answer_f1, level="step")}, [RIGHT], CONTEXT)
    with pytest.raises(ConfigError, match="reward format has level outcome"):
        combine({"format": Term(step_format)}, [RIGHT], CONTEXT)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({}, "rewards is empty"),
        ({"f1": {"weigth": 2.0, "reward": answer_f1}}, "rewards.f1 has an unknown key 'weigth'"),
        ({"f1": {"weight": 2.0}}, "rewards.f1 has no 'reward'"),
        ({"f1": {"reward": answer_f1, "level": "steps"}}, "level 'steps'"),
        ({"f1": {"reward": "answer_f1"}}, "must be a component"),
        ({"f1": {"reward": answer_f1, "weight": float("nan")}}, "weight nan of a reward: it must be finite"),
    ],
)
def test_a_wrong_term_is_named(rewards, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_terms(rewards)


def test_terms_are_read_from_a_config_s_maps() -> None:
    terms = read_terms({"f1": {"reward": answer_f1, "weight": 2.0}, "format": Term(step_format, level="step")})
    assert (terms["f1"].weight, terms["f1"].level, terms["format"].level) == (2.0, "outcome", "step")
    assert Action("answer", "Ada Lovelace") == RIGHT.turns[-1].action


class Shared(IterationReward):
    """Gives each episode a share of 12: nobody knows how many there are before all ranks have sampled."""

    def __call__(self, episodes: Sequence[Episode], context: RewardContext) -> Tensor:
        context.log("asked", torch.ones(len(episodes)))
        return torch.full((len(episodes),), 12.0)

    def settle(
        self, episodes: Sequence[Episode], values_B: Tensor, logged: Mapping[str, Tensor], total: Total
    ) -> Tensor:
        return values_B / total(logged["asked"].sum()) if "asked" in logged else values_B


def test_a_reward_that_hangs_on_the_whole_iteration_is_settled_once_all_of_it_is_scored() -> None:
    terms = {"shared": Term(Shared(), weight=0.5), "f1": Term(answer_f1)}
    episodes = [RIGHT, FAILED, SILENT]
    before = combine(terms, episodes, CONTEXT)
    after = settled(terms, before, episodes, lambda own: own + 2)  # two of another rank
    assert before.outcome_B[[0, 2]].tolist() == [7.0, 6.0]
    assert after.outcome_B[[0, 2]].tolist() == [2.5, 1.5]
    assert after.breakdown["shared"][[0, 2]].tolist() == [3.0, 3.0]
    assert after.outcome_B.isnan().tolist() == [False, True, False]
    assert before.breakdown["shared"][0] == 12.0, "as it was"


def test_not_to_answer_is_worth_less_than_right_and_more_than_wrong() -> None:
    left = [episode(FINAL.format(text)) for text in ("I do not know.", "I don't know")]
    unanswerable = replace(left[0], question=question(answer="I do not know"))
    guessed = replace(RIGHT, question=unanswerable.question)
    rewards = answer_or_abstain([RIGHT, HALF, SILENT, *left, unanswerable, guessed], CONTEXT)
    assert rewards.tolist() == pytest.approx([1, 0, 0, 0.3, 0.3, 1, 0])
    assert answer_or_abstain(left, CONTEXT, abstain=0.5).tolist() == [0.5, 0.5]
    with pytest.raises(ConfigError, match="abstain 1 must lie between"):
        answer_or_abstain(left, CONTEXT, abstain=1)


class Opinion:
    """Calls an answer right that names Ada, and has no opinion of silence."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def correct(self, episodes: Sequence[Episode]) -> list[bool | None]:
        self.counts[JUDGE_CALLS] += len(episodes)
        return ["Ada" in one.answer if one.answer else None for one in episodes]


def test_a_judge_s_missing_verdict_is_unknown_and_its_calls_are_counted() -> None:
    context = RewardContext(PROTOCOL)
    wrong = episode(FINAL.format("Bob"))
    judged = judged_answer([RIGHT, HALF, wrong, SILENT], context, judge=Opinion())
    assert judged.tolist() == pytest.approx([1, 1, 0, NAN], nan_ok=True)
    assert (context.counts[JUDGE_CALLS], context.logged["unjudged"].tolist()) == (4, [0, 0, 0, 1])
