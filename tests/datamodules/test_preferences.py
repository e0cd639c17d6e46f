from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from common.chat_client import ChatError
from common.costs import JUDGED_STEPS
from common.errors import ConfigError, DataError
from datamodules.preferences import Preferences
from datamodules.records import pair_from_row, read_rows, tree_to_row, write_rows
from datamodules.tree.node import Node, Tree
from envs.pairs import Candidate, Pair, Verdict
from envs.protocols.prorag import ProRAG
from envs.types import Action, Question, Turn
from modules.judges.value_gap import ValueGap
from tests.making import check_shares_and_resumes, run

QUESTION = Question("q", "Who wrote it?", ("Ada",))


def said(kind: str, text: str) -> Turn:
    whole = f"t </step>\n<{kind}>\n{text} </{kind}>"
    return Turn("policy", (), (1,), (-1.0,), "stop", text, whole, action=Action(kind, text))


def answer(text: str, visits: int, value: float) -> Node:
    return Node(said("answer", text), visits=visits, value=value, status="answered", outcome=value)


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """Five trees of one group each: values .9 and .1, then .8 and .2, ... ."""
    rows = []
    for i in range(5):
        children = [answer("Ada", 2, 0.9 - i / 10), answer("Bob", 2, 0.1 + i / 10), answer("Eve", 0, 0.0)]
        rows.append(tree_to_row(Tree(Question(f"q{i}", f"Who wrote {i}?", ("Ada",)), (7,), Node(children=children))))
    write_rows(tmp_path / "search" / "data" / "trees.jsonl", rows)
    return tmp_path / "search"


class Told:
    """A judge that answers by question and counts what it is asked."""

    def __init__(self, answers: dict[str, tuple[Verdict, ...] | None]) -> None:
        self.answers = answers
        self.counts: Counter[str] = Counter()

    def compare(self, groups: Sequence[Sequence[Candidate]]) -> list[tuple[Verdict, ...] | None]:
        self.counts["judge/calls"] += len(groups)
        return [self.answers.get(group[0].episode.question.id) for group in groups]


WORSE_FIRST = (Verdict(1, 0, "says so"), Verdict(0, 1, "second thoughts"))


def pairs(folder: Path) -> list[Pair]:
    return [pair_from_row(row) for row in read_rows(folder / "data" / "pairs.jsonl", "pair/2")]


def test_pairs_carry_their_steps_values_and_reasons(protocol: ProRAG, trees: Path, tmp_path: Path) -> None:
    metrics = run(Preferences(trees, protocol, ValueGap(min_gap=0.5)), tmp_path)
    first, second = pairs(tmp_path)
    assert (first.chosen.question.id, second.chosen.question.id) == ("q0", "q1")
    assert (first.chosen.answer, first.rejected.answer) == ("Ada", "Bob")
    assert (first.chosen_value, first.chosen_visits, first.rejected_value) == (0.9, 2, 0.1)
    assert first.reason == "value 0.90 against 0.10"
    assert [step.kind for step in first.chosen.steps] == ["answer"]
    assert metrics == {
        "trees": 5, "groups": 5, "nulls": 3, "failures": 0, "pairs": 2, "questions": 2, "agreement": 1.0,
        JUDGED_STEPS: 10,
    }  # fmt: skip


def test_trees_of_another_tokenizer_s_ids_are_not_judged(protocol: ProRAG, tmp_path: Path) -> None:
    found = Tree(QUESTION, (7,), Node(children=[answer("Ada", 2, 0.9)]), tokenizer="another")
    write_rows(tmp_path / "search" / "data" / "trees.jsonl", [tree_to_row(found)])
    with pytest.raises(DataError, match=r"trees.jsonl:1: its token ids are those of another tokenizer"):
        run(Preferences(tmp_path / "search", protocol, ValueGap(min_gap=0.5)), tmp_path)


def test_nulls_failures_and_what_a_judge_counts_are_kept(protocol: ProRAG, trees: Path, tmp_path: Path) -> None:
    judge = Told({"q0": WORSE_FIRST, "q1": (), "q2": (), "q3": None, "q4": WORSE_FIRST})
    metrics = run(Preferences(trees, protocol, judge, unit=3), tmp_path)
    assert {name: metrics[name] for name in ("groups", "nulls", "failures", "pairs", "judge/calls")} == {
        "groups": 5, "nulls": 2, "failures": 1, "pairs": 2, "judge/calls": 5,
    }  # fmt: skip
    kept = json.loads((tmp_path / "data" / "preferences.json").read_text())
    assert kept["counts"] == {"judge/calls": 5, JUDGED_STEPS: 10}


def test_agreement_is_over_pairs_whose_values_differ(protocol: ProRAG, trees: Path, tmp_path: Path) -> None:
    """q0 and q4 are judged against the search; the two values of q4 are equal."""
    metrics = run(Preferences(trees, protocol, Told({"q0": WORSE_FIRST, "q4": WORSE_FIRST})), tmp_path / "one")
    assert metrics["agreement"] == 0
    equal = run(Preferences(trees, protocol, Told({"q4": WORSE_FIRST})), tmp_path / "equal")
    assert "agreement" not in equal
    both = run(Preferences(trees, protocol, Told({"q0": WORSE_FIRST}), pairs_per_node=2), tmp_path / "two")
    assert (both["pairs"], both["questions"], both["agreement"]) == (2, 1, 0.5)


def test_of_a_step_that_it_never_tried_the_search_has_no_opinion(protocol: ProRAG, trees: Path, tmp_path: Path) -> None:
    untried_worse, untried_better = Verdict(1, 2, ""), Verdict(2, 0, "")
    judge = Told({"q0": WORSE_FIRST, "q1": (untried_worse,), "q2": (untried_better,)})
    metrics = run(Preferences(trees, protocol, judge, min_visits=0), tmp_path)
    assert (metrics["pairs"], metrics["agreement"]) == (3, 0)
    page = (tmp_path / "report.md").read_text()
    assert "of which 0 of the 1 with different values agree" in page
    assert "Eve" not in page.partition("## One tree")[0]


def test_ranks_share_the_trees_and_a_killed_run_goes_on(protocol: ProRAG, trees: Path, tmp_path: Path) -> None:
    check_shares_and_resumes(Preferences(trees, protocol, ValueGap(), unit=2), tmp_path)


def test_a_judge_that_is_out_leaves_no_unit_behind(protocol: ProRAG, trees: Path, tmp_path: Path) -> None:
    class Out:
        def compare(self, groups: Sequence[Sequence[Candidate]]) -> list[Any]:
            raise ChatError("no call was answered")

    with pytest.raises(ChatError):
        run(Preferences(trees, protocol, Out()), tmp_path)
    assert not list(tmp_path.glob("data/units/*"))


def test_steps_with_different_histories_are_compared_on_request(protocol: ProRAG, tmp_path: Path) -> None:
    """Only the answer to the first of two sub-answers is right: among siblings alone there is nothing to compare."""
    below = {text: [answer(text, 2, value) for _ in range(2)] for text, value in (("Ada", 0.9), ("Bob", 0.1))}
    steps = [Node(said("subanswer", text), visits=3, value=0.5, children=below[text]) for text in below]
    write_rows(tmp_path / "data" / "trees.jsonl", [tree_to_row(Tree(QUESTION, (7,), Node(children=steps)))])
    with pytest.raises(DataError, match="no pairs: of 3 groups"):
        run(Preferences(tmp_path, protocol, ValueGap(min_gap=0.5)), tmp_path / "siblings")
    found = run(Preferences(tmp_path, protocol, ValueGap(min_gap=0.5), pairs_per_tree=1), tmp_path / "mixed")
    assert (found["groups"], found["nulls"], found["pairs"]) == (4, 3, 1)
    assert found[JUDGED_STEPS] == 6, "each once, though among its siblings and in the mixed group"
    [pair] = pairs(tmp_path / "mixed")
    assert (pair.chosen.answer, pair.rejected.answer) == ("Ada", "Bob")
    assert [pair.chosen.turns[0].action.text, pair.rejected.turns[0].action.text] == ["Ada", "Bob"]
    report = (tmp_path / "mixed" / "report.md").read_text()
    assert report.index("1. subanswer: Ada") < report.index("better") < report.index("1. subanswer: Bob")
    found = run(
        Preferences(tmp_path, protocol, ValueGap(min_gap=0.3), pairs_per_node=0, pairs_per_tree=9), tmp_path / "all"
    )
    assert (found["groups"], found["pairs"]) == (1, 9)  # of twelve


def test_a_pair_of_siblings_is_no_further_pair_of_its_tree_too(protocol: ProRAG, trees: Path, tmp_path: Path) -> None:
    """Each tree has one group with one pair, which its steps with any histories give again."""
    judge = ValueGap(min_gap=0.1)
    alone = run(Preferences(trees, protocol, judge), tmp_path / "siblings")
    both = run(Preferences(trees, protocol, judge, pairs_per_tree=3), tmp_path / "both")
    assert (both["groups"], both["pairs"]) == (2 * alone["groups"], alone["pairs"])


def test_no_pairs_at_all_is_one_clear_line(protocol: ProRAG, trees: Path, tmp_path: Path) -> None:
    judge = Told({f"q{i}": () for i in range(4)})
    with pytest.raises(DataError, match="no pairs: of 5 groups of steps the judge found 4 alike and failed on 1"):
        run(Preferences(trees, protocol, judge), tmp_path)


def test_the_report_shows_pairs_for_and_against_the_search_and_a_tree(
    protocol: ProRAG, trees: Path, tmp_path: Path
) -> None:
    verdicts: dict[str, Any] = {f"q{i}": (Verdict(0, 1, f"good {i}"),) for i in range(4)}
    run(Preferences(trees, protocol, Told(verdicts | {"q0": (Verdict(1, 0, "odd"),)})), tmp_path)
    report = (tmp_path / "report.md").read_text()
    with_search, against = report.split("## Most against it")
    assert "better (Q 0.80, N 2): answer: t </step> <answer> Ada </answer>" in with_search
    assert with_search.index("good 1") < with_search.index("good 2")
    assert against.index("odd") < against.index("good 3")
    assert "Question: Who wrote 0?" in against.split("## One tree")[1]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("pairs_per_node", 0), ("pairs_per_tree", -1), ("unit", 0), ("min_visits", -1), ("descend_visits", -1)],
)
def test_a_setting_out_of_range_is_refused(protocol: ProRAG, trees: Path, setting: str, value: int) -> None:
    arguments: dict[str, Any] = {setting: value}
    with pytest.raises(ConfigError, match=f"{setting} {value}"):
        Preferences(trees, protocol, ValueGap(), **arguments)
