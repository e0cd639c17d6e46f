from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest

from envs.types import Action, Document, Episode, Gold, Hit, Question, Step, Turn
from evaluation.scoring import endings, score, summarise, summarise_groups

GOLD = Gold(hops=2, type="bridge", documents=("d1", "d2"), titles=("One", "Two"))
HITS = (Hit(Document("d1", "One", "")), Hit(Document("x9", " TWO ", "")))


def episode(answer: str = "Paris", status="answered", gold: Gold | None = GOLD) -> Episode:
    query = Turn("policy", (), (1, 2), (0.0, 0.0), "stop", "u", text="asks", action=Action("query", "q"), hits=HITS)
    final = Turn("policy", (), (3,), (0.0,), "stop", "v", text="says", action=Action("answer", answer))
    done = Episode(Question("q1", "Where?", ("Paris", "City of Light"), gold), (), [query, final], status, answer)
    done.steps = (
        Step("query", True, ((0, 0, 2),), query="q", said="asks", hits=HITS),
        Step("answer", False, ((1, 0, 1),), claim=answer, said="says"),
    )
    return done


def test_an_episode_becomes_one_row() -> None:
    row = score(episode("the city of lights"), valid=False)
    assert (row["em"], row["cover"], row["searches"], row["valid_steps"], row["valid_episodes"]) == (0, 1, 1, 0.5, 0)
    assert row["f1"] == pytest.approx(2 / 3)
    assert (row["hops"], row["type"], row["turns"], row["tokens"]) == (2, "bridge", 2, 3)
    assert row["flawed"] is None
    assert row["gold"] == {"steps": [], "documents": ["d1", "d2"], "titles": ["One", "Two"]}
    step = {"kind": "query", "text": "q", "valid": True, "hits": ["d1", "x9"], "said": "asks", "logp": 0.0}
    assert row["steps"][0] == step


def test_a_step_tells_its_mean_log_prob_its_agent_and_what_an_oracle_says_of_it() -> None:
    judged = episode()
    judged.turns[0].action_logps = (-0.5, -1.0)
    judged.turns[1].agent = "reader"
    oracle = FakeOracle((True, None), False, False, (True, None), (None, False))
    query, answer = score(judged, valid=True, oracle=oracle)["steps"]
    assert {name: query.get(name) for name in ("logp", "agent", "truth", "needless")} == {
        "logp": -0.75,
        "agent": "policy",
        "truth": True,
        "needless": True,
    }
    assert (answer["agent"], answer["unfounded"]) == ("reader", False)
    assert {"truth", "needless"}.isdisjoint(answer), "what cannot be told is left out"
    alone, _ = score(episode(gold=None), valid=True)["steps"]
    assert {"agent", "truth"}.isdisjoint(alone)
    assert score(episode(gold=None), valid=True)["gold"] is None


def test_recall_is_by_id_or_by_title_and_absent_without_gold_or_retriever() -> None:
    assert score(episode(), valid=True)["recall"] == 0.5
    assert score(episode(), valid=True, match="title")["recall"] == 1.0
    assert score(episode(gold=None), valid=True)["recall"] is None
    unsearched = score(episode(), valid=True, retrieves=False)
    assert unsearched["recall"] is unsearched["searches"] is None


def searching(*found: str, status="answered", title: str = "") -> Episode:
    """Searches, each of which finds the documents named, one letter each, and an end."""
    made = episode(status=status, gold=Gold(hops=2, documents=("a", "b"), titles=("A", "B")))
    hits = [tuple(Hit(Document(name, title or name, "")) for name in names) for names in found]
    searches = [Turn("policy", (), (1,), (0.0,), "stop", "u", action=Action("query", "q"), hits=some) for some in hits]
    made.turns = [*searches, *made.turns[1:]]
    made.steps = ()
    return made


@pytest.mark.parametrize(
    ("found", "premature", "late"),
    [
        (("a", "b"), 0, 0),
        (("a", "x"), 1, 0),
        ((), 1, 0),
        (("a", "b", "x"), 0, 1),
        (("ab", "b"), 0, 1),
        (("x", "ab"), 0, 0),
    ],
)
def test_an_answer_is_premature_without_all_evidence_and_late_after_a_search_too_many(found, premature, late) -> None:
    row = score(searching(*found), valid=True)
    assert (row["premature"], row["late"]) == (premature, late)
    unanswered = score(searching(*found, status="step_budget"), valid=True)
    assert (unanswered["premature"], unanswered["late"]) == (0, late), "only an answer can come too early"


def test_evidence_is_compared_as_recall_is_and_unknown_without_gold_or_retriever() -> None:
    assert score(searching("x", title=" b "), valid=True, match="title")["recall"] == 0.5
    assert score(searching("x", title=" b "), valid=True, match="title")["premature"] == 1
    for row in (score(searching("a"), valid=True, retrieves=False), score(episode(gold=None), valid=True)):
        assert [row[name] for name in ("recall", "premature", "late")] == [None] * 3


def test_titles_are_compared_in_every_unicode_form_and_without_outer_quotes() -> None:
    for wanted, hit, recall in (("Zo\u00eb", '"Zoe\u0308"', 1), ('"Zoe\u0308"', "Zo\u00eb", 1), ("Zo", "Zo\u00eb", 0)):
        made = replace(searching("x", title=hit), question=replace(episode().question, gold=Gold(titles=(wanted,))))
        assert score(made, valid=True, match="title")["recall"] == recall


def test_ids_are_compared_in_every_unicode_form() -> None:
    made = replace(searching(("Zoe\u0308",)), question=replace(episode().question, gold=Gold(documents=("Zo\u00eb",))))
    assert score(made, valid=True)["recall"] == 1


def test_an_agent_that_does_not_search_finds_nothing() -> None:
    unsearched = episode()
    unsearched.turns = unsearched.turns[1:]
    unsearched.steps = ()
    assert score(unsearched, valid=True)["recall"] == 0


@dataclass
class FakeJudgement:
    valid: tuple[bool | None, ...] = (True, False)
    flawed: bool = True
    unresolved: bool | None = False
    needless: tuple[bool | None, ...] = ()
    unfounded: tuple[bool | None, ...] = ()


class FakeOracle:
    def __init__(self, *judgement: Any) -> None:
        self.judgement = FakeJudgement(*judgement)

    def judge(self, episode: Episode) -> FakeJudgement:
        return self.judgement


def test_the_oracle_counts_process_hallucination() -> None:
    row = score(episode(), valid=True, oracle=FakeOracle())
    assert (row["em"], row["flawed"], row["unresolved"], row["true_steps"]) == (1, 1, 0, 0.5)


def test_steps_that_cannot_be_judged_count_for_nothing() -> None:
    row = score(episode(), valid=True, oracle=FakeOracle((None, True), False, None))
    assert (row["flawed"], row["unresolved"], row["true_steps"]) == (0, None, 1)
    row = score(episode(), valid=True, oracle=FakeOracle((None, None), True, False))
    assert (row["flawed"], row["true_steps"]) == (None, None), "no step can be judged"
    assert summarise([row], seed=0)["flawed"] is None


def test_searches_and_statements_are_counted_by_question_and_pooled_over_steps() -> None:
    def asked(needless: tuple[bool | None, ...], unfounded: tuple[bool | None, ...] = ()) -> dict[str, Any]:
        return score(episode(), valid=True, oracle=FakeOracle((True, True), False, False, needless, unfounded))

    rows = [asked((True, None)), asked((False, False, False)), asked((None, None), (True, False, None))]
    assert [(row["needless_searches"], row["judged_searches"]) for row in rows] == [(1, 1), (0, 3), (0, 0)]
    assert [(row["unfounded_statements"], row["judged_statements"]) for row in rows] == [(0, 0), (0, 0), (1, 2)]
    result = summarise(rows, seed=0)
    assert (result["osr"], result["usr"]) == (0.25, 0.5), "1 of 4 searches, not the mean of 1 and 0 over questions"
    assert (result["osr_low"], result["osr_high"]) == (0.0, 1.0)
    assert (result["usr_low"], result["usr_high"]) == (None, None), "one question alone"


def test_rates_without_any_step_to_judge_are_missing() -> None:
    rows = [score(episode(), valid=True), score(episode(), valid=True, oracle=FakeOracle())]
    result = summarise(rows, seed=0)
    assert [result[key] for key in ("osr", "osr_low", "usr", "usr_high")] == [None] * 4


def test_an_episode_without_steps_is_not_flawed_where_truth_is_known() -> None:
    empty = episode("", status="token_budget")
    empty.turns, empty.steps = [], ()
    row = score(empty, valid=False, oracle=FakeOracle((), False, False))
    assert (row["flawed"], row["true_steps"], row["valid_steps"]) == (0, None, None)


def test_an_episode_that_failed_is_not_scored_but_counted() -> None:
    failed = episode("", status="error")
    failed.error = "retriever is down"
    row = score(failed, valid=False, oracle=FakeOracle())
    assert [row[key] for key in ("em", "f1", "recall", "flawed", "searches")] == [None] * 5
    result = summarise([row, score(episode(), valid=True)], seed=0)
    assert (result["n"], result["em"]) == (1, 1.0)
    assert endings([row])["errors"] == {"retriever is down": 1}


def test_a_summary_is_the_mean_with_an_interval_around_it() -> None:
    rows = [score(episode(answer), valid=True) for answer in ["Paris"] * 30 + ["Rome"] * 70]
    result = summarise(rows, seed=0)
    assert (result["n"], result["em"]) == (100, 0.3)
    assert 0.18 < result["em_low"] < 0.3 < result["em_high"] < 0.42
    assert result["flawed"] is None
    assert result["flawed_low"] is None
    assert summarise(rows, seed=0) == result


def test_groups_are_by_hops_and_type_where_they_differ() -> None:
    right, wrong = score(episode(), valid=True), score(episode("Rome"), valid=True)
    wrong = wrong | {"hops": 3}
    groups = {group["group"]: (group["n"], group["em"]) for group in summarise_groups([right, right, wrong], seed=0)}
    assert groups == {"hops=2": (2, 1.0), "hops=3": (1, 0.0)}


def test_endings_count_stops_and_cuts_by_name() -> None:
    cut = episode()
    cut.truncations = Counter({"observation": 2})
    counted = endings([score(cut, valid=True), score(episode(status="step_budget"), valid=True)])
    assert counted["stop"] == {"answered": 1, "step_budget": 1}
    assert counted["truncations"] == {"observation": 2}
    assert counted["mean"] == {"turns": 2, "tokens": 3}


def test_coverage_and_the_accuracy_of_what_was_answered_are_told_where_episodes_may_abstain() -> None:
    answers = ("Paris", "Rome", "I do not know.", "Paris")
    rows = [score(episode(answer), valid=True, may_abstain=True) for answer in answers]
    total = summarise(rows, seed=0)
    assert (total["em"], total["coverage"], total["selective_em"]) == (0.5, 0.75, pytest.approx(2 / 3))
    rows[0]["judged"], rows[1]["judged"], rows[2]["judged"], rows[3]["judged"] = 1.0, 1.0, 0.0, None
    assert summarise(rows, seed=0)["judged"] == pytest.approx(2 / 3), "a missing verdict is left out"
    assert {"judged", "coverage", "selective_em"}.isdisjoint(summarise([score(episode(), valid=True)], seed=0))
