"""What a policy does after gold histories: each of its errors is found where it is made, and there alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from common.costs import JUDGE_CALLS
from common.errors import ConfigError, DataError, RetrievalError
from envs.interfaces import Retriever
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.teachers.gold_plans import GoldPlans
from envs.teachers.plans import PlanTeacher
from envs.types import Document, Episode, Gold, GoldStep, Hit, Limits, Question
from evaluation.steps.after_gold import StepsAfterGold
from modules.judges.gold_decomposition import GoldDecomposition
from tests.making import check_shares_and_resumes, run
from tests.steps import final, query, subanswer
from tests.tiny import Scripted, byte_tokenizer, question

PROTOCOL = ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type] (a loaded one will do)
ROOMY = Limits(turns=9, total_tokens=100_000)


def one_hop() -> Question:
    steps = (GoldStep("Who wrote Novel9?", "Bath9", ("novel9",)),)
    return Question("q9", "Who is it?", ("Bath9",), Gold(hops=1, type="single", steps=steps))


def two_hops(number: int) -> Question:
    steps = (
        GoldStep(f"Who wrote Novel{number}?", f"Ada{number}", (f"novel{number}",)),
        GoldStep("Where was #1 born?", f"Bath{number}", (f"ada{number}",)),
    )
    kind = "bridge" if number % 2 else "compositional"
    return Question(f"q{number}", f"Where is it, {number}?", (f"Bath{number}",), Gold(hops=2, type=kind, steps=steps))


class ByName:
    """Finds the passages whose title is a word of the query."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        words = [text.replace("?", " ").split() for text in queries]
        return [
            [Hit(Document(word.lower(), word, f"Of {word}.")) for word in own if word[-1].isdigit()] for own in words
        ]


class Down:
    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        raise RetrievalError("down")


def says(episode: Episode) -> str:
    """Right, but for one error of each kind, each on a question of its own."""
    number, place = int(episode.question.id[1:]), len(episode.turns)
    errors = {
        (0, 0): final(f"Bath{number}"),
        (1, 1): subanswer("Eve"),
        (2, 2): query("Where was she born?"),
        (3, 3): query(f"Where was Ada{number} born?"),
        (4, 4): "nonsense </answer>",
        (5, 4): final("York"),
    }
    right = (
        query(f"Who wrote Novel{number}?"),
        subanswer(f"Ada{number}"),
        query(f"Where was Ada{number} born?"),
        subanswer(f"Bath{number}"),
        final(f"Bath{number}"),
    )
    return errors.get((number, place), right[place])


def stage(questions: Sequence[Question], retriever: Retriever | None = None, unit: int = 4) -> StepsAfterGold:
    environment = RetrievalEnvironment(PROTOCOL, retriever or ByName(), limits=ROOMY)
    return StepsAfterGold(
        questions,  # type: ignore[arg-type] (a list will do)
        PlanTeacher(PROTOCOL, GoldPlans()),
        RetrievalEnvironment(PROTOCOL, ByName(), limits=ROOMY),
        environment,
        Scripted(PROTOCOL.codec.control, says),
        GoldDecomposition(),
        pool=7,
        unit=unit,
    )


def test_each_error_is_found_where_it_is_made_and_nowhere_after(tmp_path: Path) -> None:
    metrics = run(stage([*map(two_hops, range(6)), question(identity="q6")]), tmp_path)
    found = json.loads((tmp_path / "data" / "after_gold.json").read_text())
    shares = {one["due"]: (one["right"], one["another_kind"], one["out_of_format"]) for one in found["types"]["all"]}
    sixth, five = pytest.approx(1 / 6), pytest.approx(5 / 6)
    assert shares == {
        "query 1": (five, sixth, 0),  # it answers at once, rightly, and no hop is settled
        "subanswer 1": (five, 0, 0),
        "query 2": (five, 0, 0),  # without the name that it has read
        "subanswer 2": (five, sixth, 0),  # it searches once more, and finds nothing new
        "answer": (pytest.approx(4 / 6), 0, sixth),
    }
    assert {one["n"] for one in found["types"]["all"]} == {6}
    assert found["left_out"] == 1, "no gold reasoning"
    bridge = {one["due"]: one["right"] for one in found["types"]["bridge"]}
    assert bridge["subanswer 1"] == pytest.approx(2 / 3)
    assert bridge["query 1"] == bridge["query 2"] == 1
    assert metrics["right/answer"] == pytest.approx(4 / 6)
    assert metrics[JUDGE_CALLS] == 29, "of 30 steps one is out of format"
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert [cell.strip() for cell in lines[6].split("|")[1:-1]] == ["all", "query 1", "6", "6", "83.3", "16.7", "0.0"]
    assert lines[-1].startswith("1 questions are left out")


def test_steps_are_listed_in_the_order_of_the_longest_question(tmp_path: Path) -> None:
    run(stage([one_hop(), two_hops(8)]), tmp_path)
    found = json.loads((tmp_path / "data" / "after_gold.json").read_text())["types"]["all"]
    assert [one["due"] for one in found] == ["query 1", "subanswer 1", "query 2", "subanswer 2", "answer"]
    assert [one["n"] for one in found] == [2, 2, 1, 1, 2]


def test_two_ranks_make_the_bytes_of_one_and_a_killed_run_goes_on(tmp_path: Path) -> None:
    check_shares_and_resumes(stage([*map(two_hops, range(10))]), tmp_path)


def test_a_failed_search_is_no_wrong_step(tmp_path: Path) -> None:
    with pytest.raises(RetrievalError, match="episodes failed, run again: down"):
        run(stage([two_hops(1)], Down()), tmp_path)
    assert not [*tmp_path.rglob("*.jsonl")]


def test_questions_without_gold_reasoning_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="they need gold reasoning"):
        run(stage([question()]), tmp_path)
    with pytest.raises(ConfigError, match="unit 0"):
        stage([question()], unit=0)
