from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import DataError
from datamodules.sources.musique import MuSiQue, MuSiQueUnanswerable

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_decomposition_keeps_its_references_and_names_its_passages() -> None:
    source = MuSiQue(FIXTURES / "musique.jsonl")
    text_of = {document.id: document.text for document in source.documents()}
    question = next(iter(source))
    assert question.id == "2hop__11_12"
    assert question.answers == ("Juno Pell", "J. Pell")
    gold = question.gold
    assert gold is not None
    assert (gold.hops, gold.type, gold.titles) == (2, "2hop", ("The Reed", "Tarn"))
    assert [(step.question, step.answer) for step in gold.steps] == [
        ("The Reed >> filming location", "Tarn"),
        ("Who is the mayor of #1 ?", "Juno Pell"),
    ]
    assert [text_of[step.documents[0]] for step in gold.steps] == [
        "The Reed was filmed in Tarn.",
        "The mayor of Tarn is Juno Pell.",
    ]
    assert gold.documents == (gold.steps[0].documents[0], gold.steps[1].documents[0])


def test_the_type_is_the_shape_and_the_hops_are_counted() -> None:
    golds = [question.gold for question in MuSiQue(FIXTURES / "musique.jsonl")]
    assert [(gold.hops, gold.type) for gold in golds if gold] == [(2, "2hop"), (3, "3hop1")]


def test_passages_with_one_title_stay_apart_and_repeated_ones_come_once() -> None:
    documents = list(MuSiQue(FIXTURES / "musique.jsonl").documents())
    assert [(document.title, document.text) for document in documents] == [
        ("Tarn", "Tarn is a town where pears grow."),
        ("Tarn", "The mayor of Tarn is Juno Pell."),
        ("The Reed", "The Reed was filmed in Tarn."),
        ("Juno Pell", "Juno Pell studied in Ostrava Bay."),
    ]
    assert len({document.id for document in documents}) == 4


def test_unanswerable_twins_are_skipped() -> None:
    assert len(list(MuSiQue(FIXTURES / "musique.jsonl"))) == 2


def test_a_file_of_nothing_but_unanswerable_twins_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "full.jsonl"
    path.write_text((FIXTURES / "musique.jsonl").read_text().splitlines()[1])
    with pytest.raises(DataError, match=r"full\.jsonl: no usable question \(skipped: 1 unanswerable\)"):
        list(MuSiQue(path))


def test_the_twins_alone_have_no_answer_but_that_it_is_not_known() -> None:
    twins = MuSiQueUnanswerable(FIXTURES / "musique.jsonl")
    [question] = twins
    answerable = list(MuSiQue(FIXTURES / "musique.jsonl"))
    assert question.answers == ("I do not know",)
    assert question.id.removesuffix("__unanswerable") in {one.id for one in answerable}
    assert {document.id for document in twins.documents()}


def test_the_hub_keeps_the_official_form() -> None:
    official = MuSiQue(FIXTURES / "musique.jsonl")
    hub = MuSiQue(hub=str(FIXTURES / "hub/musique"), split="validation")
    assert list(hub) == list(official)
    assert list(hub.documents()) == list(official.documents())
