from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import DataError
from datamodules.sources.twowiki import TwoWiki
from envs.types import Gold, GoldStep, Question

FIXTURES = Path(__file__).parents[2] / "fixtures"
TITLES = ("The Reed (2003 film)", "Ansel Birk")
FIRST = Question(
    "w1",
    "Where was the director of film The Reed (2003 Film) born?",
    ("Velmark",),
    Gold(
        2,
        "compositional",
        (
            GoldStep("The Reed >> director", "Ansel Birk", ("The Reed (2003 film)",)),
            GoldStep("Ansel Birk >> place of birth", "Velmark", ("Ansel Birk",)),
        ),
        TITLES,
        TITLES,
    ),
)


def test_evidence_triples_become_steps_with_the_paragraph_of_their_subject() -> None:
    assert next(iter(TwoWiki(FIXTURES / "2wikimultihopqa.json"))) == FIRST


def test_bridge_comparison_has_four_hops_and_the_others_two() -> None:
    questions = list(TwoWiki(FIXTURES / "2wikimultihopqa.json"))
    assert [question.gold.hops for question in questions if question.gold] == [2, 4, 2]


def test_a_subject_that_cannot_be_paired_with_a_title_has_no_paragraph() -> None:
    gold = list(TwoWiki(FIXTURES / "2wikimultihopqa.json"))[2].gold
    assert gold is not None
    assert [step.documents for step in gold.steps] == [("Ann Birk",), (), ()]


def test_sentences_are_joined_by_a_blank_and_the_first_text_of_a_title_is_kept() -> None:
    texts = {document.title: document.text for document in TwoWiki(FIXTURES / "2wikimultihopqa.json").documents()}
    assert texts["The Reed (2003 film)"] == "The Reed is a 2003 film. It was directed by Ansel Birk."
    assert texts["Ansel Birk"] == "Ansel Birk is a director from Velmark."


def test_a_file_without_contexts_has_questions_and_no_passages() -> None:
    source = TwoWiki(FIXTURES / "2wikimultihopqa_no_context.json")
    assert [question.answers for question in source] == [("Mira Sol",)]
    assert list(source.documents()) == []


def test_aliases_of_the_answer_are_accepted_too() -> None:
    source = TwoWiki(FIXTURES / "2wikimultihopqa.json", aliases=FIXTURES / "2wikimultihopqa_id_aliases.json")
    assert [question.answers for question in source] == [
        ("Velmark", "Kingdom of Velmark", "Velmarkian"),
        ("Long Noon",),
        ("Olaf Birk",),
    ]


def test_a_damaged_alias_file_is_named(tmp_path: Path) -> None:
    aliases = tmp_path / "aliases.json"
    aliases.write_text('{"Q_id": "Q1", "aliases": 3}\n')
    with pytest.raises(DataError, match=r"aliases\.json:1: aliases"):
        list(TwoWiki(FIXTURES / "2wikimultihopqa.json", aliases=aliases))


@pytest.mark.parametrize("folder", ["2wikimultihopqa", "2wikimultihopqa_columns"])
def test_hub_forms_give_the_same_question(folder: str) -> None:
    source = TwoWiki(hub=str(FIXTURES / "hub" / folder), split="validation")
    assert list(source) == [FIRST]
    assert [document.title for document in source.documents()] == list(TITLES)
