from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.costs import JUDGE_CALLS
from common.errors import ConfigError
from datamodules.world_data import WorldData
from envs.pairs import Candidate
from envs.types import Action, Document, Episode, Gold, GoldStep, Hit, Question, Step, Turn
from envs.world.facts import World
from envs.world.relations import RELATIONS
from modules.judges.gold_decomposition import GoldDecomposition
from modules.judges.pairing import ranked_pairs
from modules.judges.value_gap import ValueGap
from modules.judges.world_oracle import WorldOracle
from tests.gold_chain import MUSIQUE, OTHER, A, B


def episode(question: Question, *steps: tuple[str, str, tuple[Document, ...]]) -> Episode:
    """An episode of (kind, text, hits) steps, one a turn."""
    turns, read = [], []
    for index, (kind, text, documents) in enumerate(steps):
        hits = tuple(Hit(document) for document in documents)
        turns.append(Turn("policy", (), (1,), (0.0,), "stop", f"u{index}", action=Action(kind, text), hits=hits))
        claim = {"query": "", "subanswer": text, "answer": text}.get(kind)
        read.append(
            Step(kind, True, ((index, 0, 1),), query=text if kind == "query" else "", claim=claim, said=text, hits=hits)
        )
    return Episode(question, (0,), turns, steps=tuple(read), answer=steps[-1][1] if steps[-1][0] == "answer" else "")


def verdicts(judge: ValueGap | GoldDecomposition | WorldOracle, *group: Candidate) -> list[tuple[int, int]]:
    [answer] = judge.compare([group])
    assert answer is not None
    return [(verdict.chosen, verdict.rejected) for verdict in answer]


def test_pairs_come_best_against_worst_first_and_repeat_late() -> None:
    assert ranked_pairs([0.0, 1.0, 1.0, 0.0], 1.0) == [(1, 3), (2, 0), (1, 0), (2, 3)]
    assert ranked_pairs([0.1, None, 0.9, 0.5], 0.2) == [(2, 0), (2, 3), (3, 0)]


@given(st.lists(st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=6))
def test_pairs_are_all_that_lie_far_enough_apart(levels: list[float | None]) -> None:
    expected = {
        (i, j)
        for i, a in enumerate(levels)
        for j, b in enumerate(levels)
        if a is not None and b is not None and a - b >= 0.5
    }
    pairs = ranked_pairs(levels, 0.5)
    assert set(pairs) == expected
    assert len(pairs) == len(expected)


BLANK = episode(Question("q", "Who?", ("Ada",)), ("answer", "Ada", ()))


def test_the_value_gap_needs_a_gap_and_visits() -> None:
    judge = ValueGap(min_gap=0.2, min_visits=2)
    assert verdicts(judge, Candidate(BLANK, 0.3, 5), Candidate(BLANK, 0.9, 2), Candidate(BLANK, 0.0, 1)) == [(1, 0)]
    assert verdicts(judge, Candidate(BLANK, 0.3, 5), Candidate(BLANK, 0.45, 5)) == []


@pytest.mark.parametrize("setting", [{"min_gap": 0.0}, {"min_gap": 1.5}, {"min_visits": 0}])
def test_a_value_gap_that_means_nothing_is_refused(setting: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        ValueGap(**setting)


ASK_A, TOLD_A = ("query", "author of The Novel", (A, OTHER)), ("subanswer", "Ada Byron", ())
ASK_B, TOLD_B = ("query", "birthplace of Ada Byron", (B, A)), ("subanswer", "Rome", ())
DONE = (ASK_A, TOLD_A, ASK_B, TOLD_B)


def gold(*siblings: tuple[str, str, tuple[Document, ...]], after: tuple = (), question: Question = MUSIQUE) -> list:
    return verdicts(GoldDecomposition(), *(Candidate(episode(question, *after, sibling)) for sibling in siblings))


def test_a_query_is_better_if_it_finds_the_next_gold_passage() -> None:
    assert gold(("query", "x", (OTHER,)), ASK_A) == [(1, 0)]
    assert gold(("query", "x", (OTHER,)), ASK_B) == [(1, 0)]  # its second hit is the passage of the first hop
    assert gold(("query", "x", (OTHER,)), ("query", "early", (B,))) == []  # the second hop builds on the first
    assert gold(("query", "x", (OTHER,)), ASK_B, after=(ASK_A, TOLD_A)) == [(1, 0)]


def test_each_step_has_a_label_of_its_own_where_gold_says_something() -> None:
    steps = [(("query", "x", (OTHER,)),), (ASK_A,), (ASK_A, TOLD_A), (ASK_A, ("subanswer", "Rome", ())), DONE]
    judge = GoldDecomposition()
    assert judge.label([Candidate(episode(MUSIQUE, *one)) for one in steps]) == [0, 1, 1, 0, 1]
    assert judge.label([Candidate(BLANK)]) == [None]
    assert judge.counts[JUDGE_CALLS] == 6


def test_of_steps_that_are_not_good_none_is_preferred() -> None:
    assert gold(("query", "x", (OTHER,)), ("query", "y", (Document("d", "D", ""),)), after=(ASK_A,)) == []
    assert gold(ASK_A, ("subanswer", "wrong", ()), ("answer", "Paris", ()), after=(ASK_A,)) == []


def test_a_query_after_the_last_hop_is_worse_than_the_answer() -> None:
    assert gold(("query", "more", (Document("d", "D", ""),)), ("answer", "rome", ()), after=DONE) == [(1, 0)]


def test_a_gold_passage_is_met_by_title_in_another_corpus() -> None:
    elsewhere = Document("7781", "The Novel", "By Ada Byron.")
    assert gold(("query", "x", (OTHER,)), ("query", "y", (elsewhere,))) == [(1, 0)]


def test_a_sub_answer_must_match_the_hop_whose_passage_was_found() -> None:
    assert gold(("subanswer", "Rome", ()), ("subanswer", "the Ada Byron", ()), after=(ASK_A,)) == [(1, 0)]
    assert gold(TOLD_A, ("subanswer", "Nobody", ())) == []  # from memory: no better than a wrong one
    assert gold(TOLD_A, TOLD_B, after=(ASK_A, TOLD_A, ASK_B)) == [(1, 0)]  # the first hop is settled already


def test_an_answer_counts_by_exact_match_over_aliases() -> None:
    assert gold(("answer", "Paris", ()), ("answer", "The Rome!", ()), after=DONE) == [(1, 0)]
    assert gold(("answer", "Paris", ()), ("answer", "Milan", ()), after=DONE) == []


def test_a_right_answer_with_hops_still_open_is_a_guess() -> None:
    assert gold(("answer", "Rome", ()), ("query", "x", (OTHER,))) == []
    assert gold(("answer", "Rome", ()), ASK_A) == [(1, 0)]
    assert gold(("answer", "Rome", ()), ASK_B, after=(ASK_A, TOLD_A)) == [(1, 0)]


def test_the_two_sides_of_a_comparison_may_come_in_either_order() -> None:
    question = Question(
        "t",
        "Are both from Rome?",
        ("yes",),
        Gold(steps=(GoldStep("X >> city", "Rome", ("X",)), GoldStep("Y >> city", "Rome", ("Y",)))),
    )
    y = Document("Y", "Y", "From Rome.")
    assert gold(("query", "n", (OTHER,)), ("query", "y", (y,)), question=question) == [(1, 0)]


def test_a_triple_builds_on_the_one_that_its_subject_answers() -> None:
    question = Question(
        "t",
        "Where was the author of The Novel born?",
        ("Rome",),
        Gold(
            steps=(
                GoldStep("The Novel >> author", "Ada Byron", ("The Novel",)),
                GoldStep("Ada Byron >> birthplace", "Rome", ("Ada Byron",)),
            )
        ),
    )
    assert gold(("query", "early", (B,)), ASK_A, question=question) == [(1, 0)]


def one_turn_more(before: Step, *steps: Step) -> Candidate:
    """An episode in some other format: a step in the first turn, and what the second turn wrote."""
    turns = [Turn("policy", (), (1,), (0.0,), "stop", f"u{index}") for index in range(2)]
    return Candidate(Episode(MUSIQUE, (0,), turns, steps=(before, *steps)))


def own(turn: int, query: str = "", claim: str | None = "", *documents: Document, **more: Any) -> Step:
    hits = tuple(Hit(document) for document in documents)
    return Step(**{"kind": "own", "valid": True, "spans": ((turn, 0, 1),), **more}, query=query, claim=claim, hits=hits)


def test_a_turn_may_claim_and_search_and_is_good_if_both_are() -> None:
    both = ((0, 0, 1), (1, 0, 1))  # its claim is written at the head of the next turn
    right, wrong = (own(0, "author of The Novel", claim, A, spans=both) for claim in ("Ada Byron", "Nobody"))
    good = one_turn_more(right, own(1, "birthplace of Ada Byron", "", B))
    lost = one_turn_more(right, own(1, "birthplace of Ada Byron", "", OTHER))
    assert verdicts(GoldDecomposition(), lost, good, one_turn_more(wrong, own(1, "birthplace", "", B))) == [
        (1, 2),
        (1, 0),
    ]


def test_without_claims_a_found_passage_settles_its_hop_and_memory_needs_none() -> None:
    first, answer = own(0, "author of The Novel", None, A), own(1, "", "Rome", kind="answer")
    early, second = one_turn_more(first, answer), one_turn_more(first, own(1, "birthplace of Ada Byron", None, B))
    assert verdicts(GoldDecomposition(), early, second) == [(1, 0)]
    found = one_turn_more(own(0, "author and birthplace", None, A), own(1, "born", None, OTHER, B), answer)
    assert verdicts(GoldDecomposition(), early, found) == [(1, 0)]
    settled = own(0, "author of The Novel", "Ada Byron", A)
    memory, read = (one_turn_more(settled, own(1, "", "Rome", recall=recall)) for recall in (True, False))
    assert verdicts(GoldDecomposition(), read, memory) == [(1, 0)]


def test_without_gold_reasoning_there_is_no_preference() -> None:
    bare = Question("b", "Who?", ("Ada",))
    assert gold(("answer", "Ada", ()), ("answer", "Bob", ()), question=bare) == []
    unnamed = Question("u", "Who?", ("Ada",), Gold(steps=(GoldStep("Who?", "Ada"),)))
    assert gold(("query", "x", (A,)), ("query", "y", (A,)), question=unnamed) == []
    assert gold(("subanswer", "Ada", ()), ("subanswer", "Bob", ()), question=unnamed) == [(0, 1)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    maker = WorldData(
        people=30, cities=8, works=12, organisations=8, countries=3, hops=(1,), questions=40, namesakes=0.0,
        splits={"sft": 1, "test": 1},
    )  # fmt: skip
    maker.make(folder, seed=1, rank=0, world_size=1)
    return folder


def test_the_oracle_prefers_valid_siblings_to_invalid_ones(world: Path) -> None:
    truth = World.load(world)
    subject = next(entity for entity in truth if "birthplace" in entity.facts)
    question = Question(f"w-1hop-{subject.id.removeprefix('w-')}-birthplace", "Where?", ("?",))
    passage = Document(subject.id, subject.title, "")
    ask = RELATIONS["birthplace"].questions[0].format(x=subject.title)
    valid = ("query", ask, (passage,))
    missed = ("query", ask, (OTHER,))
    hasty = ("answer", "Nowhere", ())
    group = [Candidate(episode(question, sibling)) for sibling in (missed, valid, hasty)]
    [answer] = WorldOracle(world).compare([group])
    assert answer is not None
    assert [(v.chosen, v.rejected, v.reason) for v in answer] == [
        (1, 2, "a valid query against an invalid answer"),
        (1, 0, "a valid query against an invalid query"),
    ]
    assert WorldOracle(world).compare([group[:1] + group[2:]]) == [()]
    assert WorldOracle(world).label(group) == [0, 1, 0]
    spans = ((0, 0, 1), (1, 0, 1))  # the claim stands at the head of the second turn
    value = truth.hop(subject.id, "birthplace").value.title
    both = [one_turn_more(own(0, ask, claim, passage, spans=spans), own(1, ask, "", passage)) for claim in (value, "x")]
    for candidate in both:
        candidate.episode.question = question
    [answer] = WorldOracle(world).compare([both])
    assert answer == ()  # neither: the first asks again for what it has claimed
    [answer] = WorldOracle(world).compare(
        [[replace(one, episode=replace(one.episode, steps=one.episode.steps[:1])) for one in both]]
    )
    assert [(v.chosen, v.rejected) for v in answer or ()] == [(0, 1)]


def test_steps_that_the_oracle_cannot_tell_of_are_not_compared(world: Path) -> None:
    subject = next(entity for entity in World.load(world) if "birthplace" in entity.facts)
    question = Question(f"w-1hop-{subject.id.removeprefix('w-')}-birthplace", "Where?", ("?",))
    alone = [Candidate(episode(question, ("answer", text, ()))) for text in ("?", "x")]
    for candidate in alone:
        candidate.episode.steps = (replace(candidate.episode.steps[0], claim=None),)
    assert WorldOracle(world).compare([alone]) == [()]
    assert WorldOracle(world).label(alone) == [None, None]
