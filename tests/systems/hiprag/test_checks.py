"""Which checks an episode gives rise to, and what a policy answers alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from envs.interfaces import RewardContext
from envs.protocols.direct import Direct
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.types import Episode, Limits, Step, Turn
from modules.rewards.terms import Term
from modules.samplers.in_process import InProcessSampler
from systems.hiprag.checks import Check, answers_alone, over_search_checks, read_claim, under_search_checks
from tests.tiny import Scripted, question
from tests.toy_rl import TERMS, learn, small_policy

SPAN = ((0, 0, 1),)
LIMITS = Limits(turns=1, turn_tokens=6, total_tokens=256)


def test_searches_with_their_claims_and_statements_are_checked() -> None:
    steps = (
        Step("search", True, SPAN, query="a", claim="one"),
        Step("statement", True, SPAN, claim="two", recall=True),
        Step("query", True, SPAN, query="b"),
        Step("subanswer", True, SPAN, claim="three"),
        Step("query", True, SPAN, query="c"),  # nothing reads it
        Step("query", True, (), query="d"),  # not the policy's
        Step("sentence", True, SPAN, claim="read", recall=True),
        Step("answer", True, SPAN, claim="four"),
    )
    episode = Episode(question(), (), steps=steps)
    over = over_search_checks(episode, {"a": "A", "b": "B", "c": "C"})
    assert over == [Check("over_search", episode, 0, "A"), Check("over_search", episode, 2, "B")]
    assert [read_claim(check) for check in over] == ["one", "three"]
    under = under_search_checks(episode)
    assert under == [Check("under_search", episode, 1)]
    assert read_claim(under[0]) == "two"


class Refuses(Scripted):
    """Answers what it is asked alone, but for one query: that turn ends in an error."""

    def take(self, request: Request) -> Turn:
        turn = super().take(request)
        return replace(turn, finish="error") if request.episode.question.text == "b" else turn


def test_a_query_that_could_not_be_asked_has_no_answer_and_no_check() -> None:
    environment = alone(small_policy())
    given = answers_alone(["a", "b"], Refuses(environment.protocol.codec.control, lambda _: "so"), environment)
    assert list(given) == ["a"]
    steps = tuple(Step("search", True, SPAN, query=query, claim="one") for query in "ab")
    assert [check.step for check in over_search_checks(Episode(question(), (), steps=steps), given)] == [0]


def alone(policy: Any) -> RetrievalEnvironment:
    protocol = Direct(policy.tokenizer, retrieve=False, instruction="")
    return RetrievalEnvironment(protocol, limits=LIMITS)


def test_update_k_is_rewarded_by_what_policy_k_answers_alone_and_greedily(tmp_path: Path) -> None:
    """At a temperature that greedy answers do not show."""
    queries, given = ["ab", "cab", "ab"], []

    def asks(episodes: Any, context: RewardContext) -> Any:
        assert context.sampler is not None
        given.append(answers_alone(queries, context.sampler, alone(small_policy())))
        return TERMS["letters"].reward(episodes, context)

    _, watch, metrics = learn(tmp_path, rewards={"asks": Term(asks)}, iterations=3, lr=3e-2, temperature=0.9)
    for k in range(3):
        policy = small_policy()
        policy.model.load_state_dict(watch.before[k])
        greedy = InProcessSampler(policy)
        assert given[k] == answers_alone(queries, greedy, alone(policy))
        assert list(given[k]) == ["ab", "cab"], "each once"
    assert given[0] != given[2], "the policy has moved"
    assert metrics["tokens/rewards"] > 0
