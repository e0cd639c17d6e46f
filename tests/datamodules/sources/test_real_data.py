"""The real originals, read whole, against the cut that was made from them by other hands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import DataError
from datamodules.sources.bamboogle import Bamboogle
from datamodules.sources.dataset import Dataset
from datamodules.sources.hotpotqa import HotpotQA
from datamodules.sources.musique import MuSiQue
from datamodules.sources.nq import NQ
from datamodules.sources.popqa import PopQA
from datamodules.sources.rows import Rows
from datamodules.sources.twowiki import TwoWiki

pytestmark = pytest.mark.data

ORIGINALS: list[tuple[type[Any], str, int, int]] = [
    (HotpotQA, "hotpotqa/original/hotpot_official_format.json", 374, 3709),
    (HotpotQA, "hotpotqa/original/hotpot_hf_format.json", 59, 582),
    (HotpotQA, "hotpotqa/original/hotpot_react_simplified.json", 500, 0),
    (TwoWiki, "2wikimultihopqa/original/2wiki_official_format.json", 577, 3618),
    (TwoWiki, "2wikimultihopqa/original/2wiki_no_context.json", 203, 0),
    (MuSiQue, "musique/original/musique_ans_official_format.jsonl", 424, 6624),
    (Bamboogle, "bamboogle/original/Bamboogle Prerelease - Sheet1.csv", 75, 0),
    (Bamboogle, "bamboogle/original/bamboogle_decomposed.json", 75, 0),
    (PopQA, "popqa/original/popQA.tsv", 700, 0),
    (NQ, "nq/original/nq_open_test.jsonl", 1000, 0),
]
CUTS = [
    ("hotpotqa", 672),
    ("2wikimultihopqa", 780),
    ("musique", 1122),
    ("popqa", 700),
    ("bamboogle", 75),
    ("nq", 400),
]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def bare(text: str) -> str:
    return "".join(text.replace("&amp;", "&").replace("&quot;", '"').split())


@pytest.mark.parametrize(("source", "path", "questions", "passages"), ORIGINALS)
def test_originals_are_read_whole(
    data_root: Path, source: type[Dataset[Any]], path: str, questions: int, passages: int
) -> None:
    dataset = source(data_root / path)
    corpus = {document.id: document.title for document in dataset.documents()}
    read = list(dataset)
    assert (len(read), len(corpus)) == (questions, passages)
    for question in read if corpus else ():
        assert question.gold is not None
        assert {corpus[document] for document in question.gold.documents} == set(question.gold.titles)


@pytest.mark.parametrize(
    ("source", "path", "steps"),
    [
        (HotpotQA, "hotpotqa/original/hotpot_official_format.json", 0),
        (TwoWiki, "2wikimultihopqa/original/2wiki_official_format.json", 1372),
        (TwoWiki, "2wikimultihopqa/original/2wiki_no_context.json", 521),
        (MuSiQue, "musique/original/musique_ans_official_format.jsonl", 1045),
    ],
)
def test_questions_agree_with_the_cut(data_root: Path, source: type[Dataset[Any]], path: str, steps: int) -> None:
    cut = {row["id"]: row for row in lines(data_root / path.split("/")[0] / "questions.jsonl")}
    title_of = {document.id: document.title for document in source(data_root / path).documents()}
    compared = odd = 0
    for question in source(data_root / path):
        row, gold = cut[question.id], question.gold
        assert gold is not None
        assert bare(question.text) == bare(row["question"])
        assert sorted(question.answers) == sorted(row["answers"])
        assert (gold.hops, gold.type, sorted(gold.titles)) == (
            row["hops"],
            row["type"],
            sorted(set(row["supporting_titles"])),
        )
        for step, known in zip(gold.steps, row["decomposition"] or (), strict=True):
            assert (step.question, step.answer) == (known["question"], known["answer"])
            compared += 1
            odd += [title_of.get(document, document) for document in step.documents] != [known["title"]]
    assert compared == steps
    assert odd <= 1  # the cut gives "Gaozong" the paragraph of his wife


@pytest.mark.parametrize("dataset", ["hotpotqa", "2wikimultihopqa"])
def test_passages_agree_with_the_corpus_but_for_white_space_and_entities(data_root: Path, dataset: str) -> None:
    name, source = {
        "hotpotqa": ("hotpot_official_format.json", HotpotQA),
        "2wikimultihopqa": ("2wiki_official_format.json", TwoWiki),
    }[dataset]
    corpus = {row["title"]: row["text"] for row in lines(data_root / dataset / "corpus.jsonl")}
    documents = list(source(data_root / dataset / "original" / name).documents())
    differing = [d.title for d in documents if bare(d.text) != bare(corpus[d.title])]
    assert len(differing) <= 2, differing


def test_a_file_of_unanswerable_twins_has_no_usable_question(data_root: Path) -> None:
    with pytest.raises(DataError, match=r"\(skipped: 9 unanswerable\)"):
        list(MuSiQue(data_root / "musique/original/musique_full_unanswerable.jsonl"))


@pytest.mark.parametrize(("dataset", "count"), CUTS)
def test_cuts_are_read_with_gold_ids_of_their_corpus(data_root: Path, dataset: str, count: int) -> None:
    ids = {row["id"] for row in lines(data_root / dataset / "corpus.jsonl")}
    questions = list(Rows(data_root / dataset / "questions.jsonl"))
    assert len(questions) == count
    for question in questions:
        assert question.gold is not None
        assert set(question.gold.documents) <= ids
        assert {document for step in question.gold.steps for document in step.documents} <= ids


def test_a_hundred_questions_of_one_split(data_root: Path) -> None:
    path = data_root / "2wikimultihopqa/questions.jsonl"
    validation = {row["id"] for row in lines(path) if row["source_split"] == "validation"}
    sampled = [question.id for question in Rows(path, split="validation", sample=100)]
    assert len(set(sampled)) == 100
    assert set(sampled) <= validation
