"""What a turn of ReasonRAG says, and whether it ends as the format wants."""

from __future__ import annotations

import pytest

from envs.types import Action
from systems.reasonrag.parse import FLAWS, ends_in, said

ASK = "I ask. So the next query is <query> who </query>"
FOUND = "I see. <evidence> Ada </evidence>"
TELL = "I know. So the answer is <answer> Ada </answer>"
NONE, TWO, OTHER, EMPTY = (Action("invalid", flaw) for flaw in FLAWS)
MARKERS = {"query": "So the next query is", "answer": "So the answer is"}


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        (ASK, Action("query", "who")),
        (TELL, Action("answer", "Ada")),
        ("<answer>J. K. Rowling</answer>", Action("answer", "J. K. Rowling")),  # not cut at a full stop
        ("<answer>Bob</answer> no, <answer>Ada</answer>", Action("answer", "Ada")),
        ("so THE answer is Ada", Action("answer", "Ada")),  # without tags
        ("so the answer is Bob. So the answer is <answer>Ada", Action("answer", "Ada")),  # the last, never closed
        ("So the next query is who wrote it?", Action("query", "who wrote it?")),
        ("So the answer is not known. So the next query is <query>who</query>", Action("query", "who")),
        ("<query><evidence>who</query>", Action("query", "who")),  # a tag inside is left out
        (f"{ASK} {TELL}", TWO),  # two decisions
        ("<query><answer>Ada</answer></query>", TWO),  # one within the other
        ("So the next query is who? So the answer is Ada", TWO),
        (f"{FOUND} {TELL}", TWO),  # evidence is a decision too, of another stage
        (FOUND, OTHER),
        ("<query> </query>", EMPTY),
        ("<answer></answer> So the answer is Ada", EMPTY),
        ("So the answer is", NONE),
        ("</answer>Ada<answer>", NONE),
        ("", NONE),
    ],
)
def test_a_sloppy_decision_is_read_if_it_is_one(text: str, decision: Action) -> None:
    assert said(text, MARKERS) == decision


@pytest.mark.parametrize(
    ("text", "evidence"),
    [
        (FOUND, Action("evidence", "Ada")),
        ("<evidence>None</evidence>.", Action("evidence", "None")),
        ("I see <evidence>Ada", NONE),
        ("<evidence>\n</evidence>", EMPTY),
        (TELL, OTHER),
        (f"{FOUND} {ASK}", TWO),
    ],
)
def test_what_a_turn_that_reads_passages_says(text: str, evidence: Action) -> None:
    assert said(text, {"evidence": ""}) == evidence


@pytest.mark.parametrize(
    ("text", "tag", "marker", "verdict"),
    [
        ("I ask. So the next query is <query>who</query>", "query", "So the next query is", True),
        ("So the next query is\n<query> who </query>\n", "query", "So the next query is", True),
        ("so the next query is <query>who</query>.", "query", "So the next query is", True),
        ("<evidence>None</evidence>", "evidence", "", True),
        ("I see 1 < 2 and <i>so</i> <evidence>Ada</evidence>", "evidence", "", True),  # no tag of this format
        ("<query>who</query>", "query", "So the next query is", False),
        ("So the next query is: <query>who</query>", "query", "So the next query is", False),
        ("So the next query is <answer>who</answer>", "query", "So the next query is", False),
        ("So the next query is <query>who</query> or so", "query", "So the next query is", False),
        ("So the next query is <query> </query>", "query", "So the next query is", False),
        ("So the next query is <query>who</query></query>", "query", "So the next query is", False),
        ("So the next query is <query>who< / QUERY >", "query", "So the next query is", False),
        ("So the next query is <query>who", "query", "So the next query is", False),
        ("<reference>x</reference> <evidence>x</evidence>", "evidence", "", False),
        ("</evidence>x<evidence>", "evidence", "", False),
        ("<evidence>x</query>", "evidence", "", False),  # closed by another tag
        ("", "evidence", "", False),
    ],
)
def test_a_turn_ends_as_the_format_wants_or_not(text: str, tag: str, marker: str, verdict: bool) -> None:
    assert ends_in(text, tag, marker) is verdict
