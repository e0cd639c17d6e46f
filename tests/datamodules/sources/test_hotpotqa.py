from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import DataError
from datamodules.sources.hotpotqa import HotpotQA
from envs.types import Document, Gold, Question

FIXTURES = Path(__file__).parents[2] / "fixtures"
BRIDGE = Question(
    "h1",
    "In which town was the founder of Marrow & Pell born?",
    ("Ostrava Bay",),
    Gold(2, "bridge", (), ("Marrow & Pell", "Ilse Marrow"), ("Marrow & Pell", "Ilse Marrow")),
)


def test_reads_the_official_list() -> None:
    questions = list(HotpotQA(FIXTURES / "hotpotqa.json"))
    assert questions[0] == BRIDGE
    assert questions[1].gold == Gold(2, "comparison", (), ("Tarn", "Ostrava Bay"), ("Tarn", "Ostrava Bay"))


def test_passages_are_unique_by_title_with_the_first_text_kept() -> None:
    assert list(HotpotQA(FIXTURES / "hotpotqa.json").documents()) == [
        Document("Ilse Marrow", "Ilse Marrow", "Ilse Marrow (1871 – 1940) was a brewer. She was born in Ostrava Bay."),
        Document(
            "Marrow & Pell",
            "Marrow & Pell",
            'Marrow & Pell is a brewery known for "Hush!". It was founded by Ilse Marrow.',
        ),
        Document("Pell Street", "Pell Street", "Pell Street is a street in Tarn."),
        Document("Tarn", "Tarn", "Tarn is a town in Velmark."),
        Document("Ostrava Bay", "Ostrava Bay", "Ostrava Bay is a town in Velmark."),
    ]


def test_hub_columns_give_the_same_questions_and_passages() -> None:
    official = HotpotQA(FIXTURES / "hotpotqa.json")
    hub = HotpotQA(hub=str(FIXTURES / "hub/hotpotqa"), split="validation")
    assert list(hub) == list(official)
    assert list(hub.documents()) == list(official.documents())


def test_hub_parquet_with_structs_reads_the_same(tmp_path: Path) -> None:
    from datasets import load_dataset

    rows = load_dataset(str(FIXTURES / "hub/hotpotqa"), split="validation", cache_dir=str(tmp_path / "cache"))
    rows.to_parquet(tmp_path / "hub/train-00000-of-00001.parquet")
    hub = HotpotQA(hub=str(tmp_path / "hub"), split="train")
    assert list(hub.documents()) == list(HotpotQA(FIXTURES / "hotpotqa.json").documents())
    assert next(iter(hub)) == BRIDGE


def test_a_list_without_ids_and_contexts_counts_its_ids() -> None:
    source = HotpotQA(FIXTURES / "hotpotqa_simplified.json")
    assert [question.id for question in source] == ["hotpotqa-1", "hotpotqa-2"]
    assert list(source.documents()) == []


def test_a_hub_folder_without_the_split_is_one_clear_error() -> None:
    source = HotpotQA(hub=str(FIXTURES / "hub/hotpotqa"), split="dev")
    with pytest.raises(DataError, match=r"hub/hotpotqa, split dev: Bad split: dev.*validation"):
        list(source)


def test_columns_of_different_length_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('[{"id": "a", "question": "q", "answer": "a", "context": {"title": ["x"], "sentences": []}}]')
    with pytest.raises(DataError, match=r"bad\.json: item 1: context: .*zip"):
        list(HotpotQA(path))


def test_a_damaged_hub_folder_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "validation.jsonl").write_text('{"id": "a", "question": "q", "answer": "b"}\n{"id": ')
    with pytest.raises(DataError, match=r", split validation") as caught:
        list(HotpotQA(hub=str(tmp_path), split="validation"))
    assert "\n" not in str(caught.value)
