"""HiPRAG's reward: what is checked and when, and that no failed check ever raises a reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from common.costs import JUDGE_CALLS, tokens_of
from common.errors import ConfigError
from envs.interfaces import RewardContext
from envs.protocols.direct import Direct
from envs.requests import Request
from envs.retrieval import RetrievalEnvironment
from envs.rollout import rollout
from envs.types import Document, Episode, Question, Turn
from modules.rewards.terms import Term, combine, settled
from systems.hiprag.checks import Check
from systems.hiprag.parse import TAGS
from systems.hiprag.protocol import HiPRAG
from systems.hiprag.reward import HierarchicalReward
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer

TOKENIZER: Any = byte_tokenizer(TAGS)
PROTOCOL = HiPRAG(TOKENIZER)
ALONE = RetrievalEnvironment(Direct(TOKENIZER, retrieve=False, instruction=""))


def search(query: str, claim: str) -> list[str]:
    """The end of one turn and the beginning of the next."""
    return [f"I ask.</reasoning><search>{query}</search>", f"{claim}</conclusion></step>"]


def state(claim: str) -> str:
    return f"I know.</reasoning><conclusion>{claim}</conclusion></step>"


def answer(text: str = "Ada") -> str:
    return f"</think><answer>{text}</answer>"


def episode(*parts: str | list[str], end: str | None = None, name: str = "q1", sample: int = 0) -> Episode:
    """An episode of these steps, played through the environment."""
    turns = [""]
    for number, part in enumerate(parts):
        first, *rest = [part] if isinstance(part, str) else part
        turns[-1] += ("<step><reasoning>" if number else "") + first
        turns += rest
    turns[-1] += answer() if end is None else end
    environment = RetrievalEnvironment(PROTOCOL, FixedRetriever([Document("d", "T", "text")]))
    script = Scripted(PROTOCOL.codec.control, lambda e: turns[len(e.turns) % len(turns)])
    [played] = rollout(environment, script, [Question(name, "Who?", ("Ada", "Ada Lovelace"))], seed=0)
    played.sample = sample
    return played


class Policy(Scripted):
    """Answers a query, put alone, with the query itself in capitals; greedily or not at all."""

    temperature = 0.7

    def __init__(self) -> None:
        super().__init__(TOKENIZER.encode, lambda e: e.question.text.upper())
        self.asked: list[str] = []

    def take(self, request: Request) -> Turn:
        assert request.greedy
        assert "Who?" not in PROTOCOL.codec.decode(request.prefix()), "the query alone"
        self.asked.append(request.episode.question.text)
        return super().take(request)


class Table:
    """Says True where the step's claim is among the given ones, None where it is among the failures."""

    def __init__(self, true: Sequence[str] = (), failed: Callable[[Check], bool] = lambda check: False) -> None:
        self.true, self.failed = true, failed
        self.checks: list[Check] = []

    def verify(self, checks: Sequence[Check]) -> list[bool | None]:
        self.checks += checks
        claims = [check.episode.steps[check.step].claim for check in checks]
        return [None if self.failed(check) else claim in self.true for check, claim in zip(checks, claims, strict=True)]


def scored(reward: HierarchicalReward, *episodes: Episode, policy: Any = None) -> list[float]:
    """The rewards of an iteration on one rank."""
    return on_ranks(reward, episodes, policy=policy)


def on_ranks(reward: HierarchicalReward, *of_ranks: Sequence[Episode], policy: Any = None) -> list[float]:
    """The rewards of an iteration whose episodes lie on several ranks."""
    terms, added = {"r": Term(reward)}, list[Tensor]()
    scores = [combine(terms, one, RewardContext(PROTOCOL, policy or Policy())) for one in of_ranks]
    for one, its in zip(of_ranks, scores, strict=True):
        settled(terms, its, one, lambda tensor: added.append(tensor) or tensor)
    total = torch.stack(added).sum(dim=0)
    final = [settled(terms, its, one, lambda _: total) for one, its in zip(of_ranks, scores, strict=True)]
    return torch.cat([its.outcome_B for its in final]).tolist()


def whole(over: Table | None = None, under: Table | None = None, **settings: Any) -> HierarchicalReward:
    return HierarchicalReward(over_search=over or Table(), under_search=under or Table(), alone=ALONE, **settings)


FOUR = episode(search("a", "needless"), search("b", "needed"), state("true"), state("untrue"))
DETECTS: dict[str, Any] = {"over": Table(["needless"]), "under": Table(["true"])}


def test_a_step_counts_if_its_search_was_needed_or_its_statement_holds() -> None:
    assert scored(whole(**DETECTS), FOUR) == pytest.approx([1.2])
    assert scored(whole(**DETECTS, lambda_p=0.0), FOUR) == pytest.approx([1.0])
    assert scored(whole(**DETECTS, lambda_p=0.6), FOUR) == pytest.approx([1.3])


def test_a_query_that_the_policy_could_not_be_asked_is_a_step_without_a_verdict() -> None:
    """It counts as a step and not as a good one; of four checks one has no verdict, which is above 20 %."""

    class Down(Policy):
        def take(self, request: Request) -> Turn:
            turn = super().take(request)
            return replace(turn, finish="error") if request.episode.question.text == "b" else turn

    assert scored(whole(**DETECTS), FOUR, policy=Down()) == pytest.approx([1.0])
    assert scored(whole(**DETECTS, most_unjudged=0.25), FOUR, policy=Down()) == pytest.approx([1.1])
    context = RewardContext(PROTOCOL, Down())
    whole(**DETECTS)([FOUR], context)
    assert context.logged["unjudged"].tolist() == [0, 0, 0, 1]


def test_one_detection_alone_lets_the_other_steps_be() -> None:
    over = HierarchicalReward(over_search=Table(["needless"]), alone=ALONE)
    under = HierarchicalReward(under_search=Table(["true"]))
    assert scored(over, FOUR) == scored(under, FOUR) == pytest.approx([1.3])
    assert scored(HierarchicalReward(), FOUR) == pytest.approx([1.4])


def test_only_right_and_well_formed_episodes_are_checked() -> None:
    wrong = episode(search("c", "x"), end=answer("Bob"))
    malformed = episode(search("d", "x"), end="<answer>Ada</answer>")
    both = episode(search("e", "x"), end="<answer>Bob</answer>")
    over, under, policy = Table(["needless"]), Table(["true"]), Policy()
    rewards = scored(whole(over, under), wrong, malformed, both, FOUR, policy=policy)
    assert rewards == pytest.approx([0.2, 0.8, 0.0, 1.2])
    assert policy.asked == ["a", "b"]
    assert [check.answer for check in over.checks] == ["A", "B"]
    assert [check.step for check in under.checks] == [2, 3]


def test_a_query_is_put_once_however_many_ask_it_and_every_check_is_counted() -> None:
    policy = Policy()
    context = RewardContext(PROTOCOL, policy)
    episodes = [episode(search("a", "x"), search("b", "x"), state("true"), name=f"q{n}") for n in range(3)]
    whole(**DETECTS)(episodes, context)
    assert policy.asked == ["a", "b"]
    assert context.counts == {JUDGE_CALLS: 9}


def test_the_answer_may_be_judged_by_cover_or_exactly() -> None:
    covered = episode(state("true"), end=answer("It was Ada Lovelace."))
    assert scored(whole(**DETECTS), covered) == pytest.approx([1.4])
    assert scored(whole(**DETECTS, correct="exact"), covered) == pytest.approx([0.2])


def test_the_released_denominator_pays_more_than_the_bonus() -> None:
    one = episode(search("a", "x"), state("true"), state("true"), state("true"))
    assert scored(whole(**DETECTS, denominator="searches"), one) == pytest.approx([2.6])
    assert scored(whole(**DETECTS), one) == pytest.approx([1.4])
    none = episode(state("untrue"))  # and all of it to an episode without a search
    assert scored(whole(**DETECTS, denominator="searches"), none) == pytest.approx([1.4])
    assert scored(whole(**DETECTS), none) == pytest.approx([1.0])


def test_an_unjudged_step_stays_a_step_or_is_left_out() -> None:
    """One good step, one bad and unjudged: to leave it out would pay 0.4 and not 0.2."""
    two = episode(search("a", "fine"), search("b", "failed"))
    over = Table(failed=lambda check: check.episode.steps[check.step].claim == "failed")
    assert scored(whole(over, most_unjudged=1.0), two) == pytest.approx([1.2])
    assert scored(whole(over, most_unjudged=1.0, unjudged="exclude"), two) == pytest.approx([1.4])
    nothing = Table(failed=lambda check: True)
    assert scored(whole(nothing, most_unjudged=1.0, unjudged="exclude"), two) == pytest.approx([1.0])


def batch() -> list[Episode]:
    """Four questions with five episodes of four steps each: eighty checks."""
    return [
        episode(search("a", "needless"), search("b", "x"), state("true"), state("y"), name=f"q{n}", sample=sample)
        for n in range(4)
        for sample in range(5)
    ]


BATCH = batch()


def failing(failed: set[int]) -> dict[str, Any]:
    """Verifiers that fail for these checks of the batch, searches and statements numbered on."""
    place = {id(one): number for number, one in enumerate(BATCH)}

    def fails(check: Check) -> bool:
        return 4 * place[id(check.episode)] + check.step in failed

    return {"over": Table(["needless"], fails), "under": Table(["true"], fails)}


@pytest.mark.parametrize(
    ("every", "rewards"),
    [(0, {1.2}), (10, {1.1, 1.2}), (4, {1.0}), (1, {1.0})],
    ids=["0 %", "10 %", "25 %", "100 %"],
)
def test_no_failure_raises_a_reward(every: int, rewards: set[float]) -> None:
    """Each episode has four checks and two good steps of four."""
    failed = set(range(0, 80, every)) if every else set()
    found = on_ranks(whole(**failing(failed)), BATCH)
    assert max(found) <= 1.2 + 1e-6
    assert {round(reward, 6) for reward in found} == rewards


@given(st.sets(st.integers(0, 79)), st.sampled_from([0.0, 0.2, 0.5, 1.0]))
def test_no_failures_of_any_checks_raise_a_reward(failed: set[int], most: float) -> None:
    rewards = on_ranks(whole(**failing(failed), most_unjudged=most), BATCH)
    assert max(rewards) <= 1.2 + 1e-6, "what they are worth without failures"


def test_above_a_fifth_of_failures_no_episode_of_the_iteration_gets_a_bonus() -> None:
    at_the_limit = set(range(16))  # of 80 checks: all those of the first four episodes
    assert on_ranks(whole(**failing(at_the_limit)), BATCH) == pytest.approx([1.0] * 4 + [1.2] * 16)
    assert on_ranks(whole(**failing(at_the_limit | {40})), BATCH) == pytest.approx([1.0] * 20)


@pytest.mark.parametrize("failed", [16, 17])
def test_rewards_do_not_depend_on_which_process_scores_a_question(failed: int) -> None:
    """Ranks make different numbers of checks and re-answers, one of them none; all failures are of the first."""
    broken, silent = failing(set(range(failed))), episode(end=answer("Bob"), name="q9")
    one = on_ranks(whole(**broken), [*BATCH, silent])
    assert one == on_ranks(whole(**broken), BATCH[:5], BATCH[5:], [silent])
    assert on_ranks(whole(**broken), [silent]) == [0.0]


def test_a_query_is_put_to_the_policy_once_an_iteration() -> None:
    policy = Policy()
    context = RewardContext(PROTOCOL, policy)
    for _ in range(2):  # groups that are sampled anew are scored by themselves
        whole()(BATCH, context)
    assert policy.asked == ["a", "b"]
    assert {query: own.text for query, own in context.alone.items()} == {"a": "A", "b": "B"}
    assert all(own.spent[tokens_of("policy")] > 0 for own in context.alone.values())


def test_what_is_logged_is_the_same_for_every_rank() -> None:
    def logged(*episodes: Episode) -> dict[str, Tensor]:
        context = RewardContext(PROTOCOL, Policy())
        over = Table(["needless"], lambda check: check.step == 1)
        whole(over, Table(["true"]))(episodes, context)
        return context.logged

    wrong = episode(search("a", "x"), end=answer("Bob"))
    values = {name: values_N.float().nanmean().item() for name, values_N in logged(FOUR, wrong).items()}
    assert values == pytest.approx(
        {"over_search": 1, "under_search": 0.5, "unjudged": 0.25, "correct": 0.5, "well_formed": 1, "answers_alone": 1}
    )
    assert list(logged(wrong)) == list(logged(FOUR)), "also where there is nothing to check"


def test_what_cannot_work_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="over_search needs `alone`"):
        HierarchicalReward(over_search=Table())
    wrong: list[dict[str, Any]] = [{"lambda_f": 1.1}, {"lambda_p": -0.1}, {"most_unjudged": 2}]
    for settings in wrong:
        with pytest.raises(ConfigError, match=next(iter(settings))):
            HierarchicalReward(**settings)
    elsewhere: Any = Direct(byte_tokenizer(()), retrieve=False)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="different tokenizers"):
        scored(HierarchicalReward(over_search=Table(), alone=RetrievalEnvironment(elsewhere)), FOUR)
    with pytest.raises(ConfigError, match="in training alone"):
        whole()([FOUR], RewardContext(PROTOCOL))
