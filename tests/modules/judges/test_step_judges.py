"""Judges of single steps: rollouts, noise around any judge, and the mean of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from common.costs import tokens_of
from common.errors import ConfigError, RetrievalError
from envs.pairs import Candidate, Verdict
from envs.protocols.prorag import ProRAG
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.types import Document, Hit, Limits, Turn
from modules.judges.noisy import NoisyJudge
from modules.judges.rollout_value import RolloutValue
from modules.judges.value_gap import ValueGap
from tests.labelled import Knows, path
from tests.steps import final, query
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer

DOCUMENTS = [Document("d", "Ada", "Ada wrote it.")]


@pytest.fixture(scope="module")
def protocol() -> ProRAG:
    return ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type]


class Sampled(Scripted):
    """Right in its answer where its random number is divisible by four; after a wrong claim never."""

    def __init__(self, protocol: ProRAG) -> None:
        super().__init__(protocol.codec.control, lambda episode: "")
        self.temperature, self.counts = 1.0, Counter[str]()

    def take(self, request: Request) -> Turn:
        wrong = any(turn.action.text == "Bob" for turn in request.episode.turns)
        self.script = lambda episode: final("Bob" if wrong or request.seed % 4 else "Ada")
        turn = super().take(request)
        self.counts[tokens_of("policy")] += len(turn.action_ids)
        return turn


def valued(protocol: ProRAG, **settings: object) -> RolloutValue:
    environment = RetrievalEnvironment(protocol, FixedRetriever(DOCUMENTS), limits=Limits(turn_tokens=99))
    return RolloutValue(environment, Sampled(protocol), **settings)  # type: ignore[arg-type]


def claims(protocol: ProRAG, count: int, claim: str = "Ada") -> list[Candidate]:
    return [Candidate(path(protocol, "query Who?", f"subanswer {claim}", identity=f"q{i}")) for i in range(count)]


def test_a_step_is_worth_the_share_of_right_answers_that_follow_it(protocol: ProRAG) -> None:
    judge = valued(protocol, rollouts=8)
    right = [label for label in judge.label(claims(protocol, 40)) if label is not None]
    assert len(right) == 40
    assert all((8 * label).is_integer() for label in right)
    assert 0.15 < sum(right) / 40 < 0.35, "a quarter of the rollouts are right"
    assert judge.label(claims(protocol, 3, "Bob")) == [0, 0, 0]
    assert judge.counts[tokens_of("policy")] == 43 * 8 * len(protocol.codec.control(final("Ada")))


def test_the_hard_estimate_asks_whether_any_is_right(protocol: ProRAG) -> None:
    soft, hard = (valued(protocol, rollouts=4, estimate=kind).label(claims(protocol, 20)) for kind in ("soft", "hard"))
    assert {*hard} == {0.0, 1.0}
    assert [float(label > 0) for label in soft if label is not None] == hard


def test_a_label_does_not_depend_on_what_is_labelled_beside_it_nor_on_a_second_call(protocol: ProRAG) -> None:
    many = claims(protocol, 12)
    judge = valued(protocol, pool=3)
    together = judge.label(many)
    assert [judge.label([one])[0] for one in many] == together
    assert valued(protocol, seed=5).label(many) != together
    assert all(len(one.episode.turns) == 2 for one in many), "the steps themselves are left as they were"


def test_an_answer_is_worth_itself_and_nothing_is_sampled(protocol: ProRAG) -> None:
    judge = valued(protocol)
    ends = [path(protocol, "query Who?", "subanswer Ada", f"answer {name}") for name in ("Ada", "Bob")]
    assert judge.label([Candidate(one) for one in ends]) == [1, 0]
    assert not judge.counts


def test_failed_rollouts_are_counted_and_never_a_label(protocol: ProRAG) -> None:
    class Down(FixedRetriever):
        def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            raise RetrievalError("down")

    environment = RetrievalEnvironment(protocol, Down(DOCUMENTS), limits=Limits(turn_tokens=99))
    sampler = Scripted(protocol.codec.control, lambda episode: query("Who?"))
    sampler.temperature = 1.0
    judge = RolloutValue(environment, sampler, rollouts=3)
    assert judge.label(claims(protocol, 1)) == [None]
    assert judge.counts == {"rollouts_failed": 3}


def test_rollouts_that_would_all_be_the_same_are_refused(protocol: ProRAG) -> None:
    environment = RetrievalEnvironment(protocol, FixedRetriever(DOCUMENTS), limits=Limits(turn_tokens=99))
    with pytest.raises(ConfigError, match="give it a temperature"):
        RolloutValue(environment, Scripted(protocol.codec.control, lambda episode: ""))
    with pytest.raises(ConfigError, match="rollouts 0"):
        valued(protocol, rollouts=0)


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.2])
def test_noise_turns_a_known_share_of_labels_round_and_always_the_same_ones(protocol: ProRAG, rate: float) -> None:
    episode = path(protocol, "query Ada")
    many = []
    for number in range(2000):
        last = replace(episode.turns[-1], uid=f"q{number}/0")
        many.append(Candidate(replace(episode, turns=[last])))
    judge = NoisyJudge(Knows(), rate=rate)
    labels = judge.label(many)
    flipped = labels.count(0.0)
    assert labels.count(1.0) == 2000 - flipped
    assert abs(flipped / 2000 - rate) < 3 * (rate * (1 - rate) / 2000) ** 0.5
    assert judge.counts == {"judge/calls": 2000, "judge_flipped": flipped}
    assert [judge.label([one])[0] for one in many[:50]] == labels[:50]
    assert NoisyJudge(Knows(), rate=rate, seed=1).label(many) != labels


def test_noise_leaves_what_is_unknown_and_what_is_even(protocol: ProRAG) -> None:
    steps = [Candidate(path(protocol, f"query {text}")) for text in ("unknown", "Eve", "Ada")]
    assert NoisyJudge(Knows(), rate=1.0).label(steps) == [None, 0.5, 0.0]
    assert NoisyJudge(Knows(), rate=0.0).label(steps) == [None, 0.5, 1.0]


def test_noise_turns_verdicts_round_whatever_the_order_of_the_group(protocol: ProRAG) -> None:
    """Two of the hundred comparisons are shown in both orders."""
    groups = []
    for number in range(100):
        names = [(f"query a{number}", 0.9), (f"query b{number}", 0.1)]
        groups.append([Candidate(path(protocol, text), value, 2) for text, value in names])
    told = NoisyJudge(ValueGap(), rate=0.2).compare(groups)
    turned = [verdicts == (Verdict(1, 0, f"turned round: {ValueGap().compare([group])[0][0].reason}"),)  # type: ignore[index]
              for verdicts, group in zip(told, groups, strict=True)]  # fmt: skip
    assert 8 <= sum(turned) <= 32
    assert all(v == (Verdict(0, 1, "value 0.90 against 0.10"),) for v, t in zip(told, turned, strict=True) if not t)
    backwards = NoisyJudge(ValueGap(), rate=0.2).compare([group[::-1] for group in groups])
    assert [verdicts[0].chosen == 0 for verdicts in backwards if verdicts] == turned


def test_a_judge_that_cannot_answer_is_named(protocol: ProRAG) -> None:
    steps = [Candidate(path(protocol, "query Ada"))]
    with pytest.raises(ConfigError, match="ValueGap compares steps"):
        NoisyJudge(ValueGap(), rate=0.1).label(steps)
    with pytest.raises(ConfigError, match="Knows labels single steps"):
        NoisyJudge(Knows(), rate=0.1).compare([steps])
    with pytest.raises(ConfigError, match="rate 1"):
        NoisyJudge(Knows(), rate=1.5)
