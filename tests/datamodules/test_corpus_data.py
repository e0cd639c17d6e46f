from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.errors import DataError
from datamodules.corpus_data import CorpusData
from datamodules.sources.hotpotqa import HotpotQA
from datamodules.sources.nq import NQ
from datamodules.sources.rows import Rows
from envs.retrievers.corpus import DocumentFile

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_rank_zero_writes_a_corpus_that_retrievers_read(tmp_path: Path) -> None:
    stage = CorpusData(HotpotQA(FIXTURES / "hotpotqa.json", limit=1))
    stage.make(tmp_path, seed=0, rank=1, world_size=2)
    assert not (tmp_path / "data").exists()
    stage.make(tmp_path, seed=0, rank=0, world_size=2)
    assert stage.merge(tmp_path, seed=0, world_size=2) == {"passages": 5.0}  # a limit of questions cuts no passages
    assert list(DocumentFile(tmp_path / "data/corpus.jsonl")) == list(HotpotQA(FIXTURES / "hotpotqa.json").documents())


def test_rows_are_these_bytes(tmp_path: Path) -> None:
    CorpusData(HotpotQA(FIXTURES / "hotpotqa.json")).make(tmp_path, seed=0, rank=0, world_size=1)
    lines = (tmp_path / "data/corpus.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines[3] == '{"id": "Tarn", "title": "Tarn", "text": "Tarn is a town in Velmark."}'


def test_a_killed_run_is_taken_up_and_a_whole_file_kept(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/.corpus.jsonl.1.tmp").write_text("half")
    stage = CorpusData(HotpotQA(FIXTURES / "hotpotqa.json"))
    stage.make(tmp_path, seed=0, rank=0, world_size=1)
    before = (tmp_path / "data/corpus.jsonl").stat().st_mtime_ns
    stage.make(tmp_path, seed=0, rank=0, world_size=1)
    assert (tmp_path / "data/corpus.jsonl").stat().st_mtime_ns == before


def test_a_source_without_passages_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no passages of its own"):
        CorpusData(NQ(FIXTURES / "nq.jsonl")).make(tmp_path, seed=0, rank=0, world_size=1)
    assert not (tmp_path / "data/corpus.jsonl").exists()


def rows(path: Path, *passages: tuple[str, str]) -> Rows:
    path.write_text("".join(json.dumps({"id": key, "title": key, "text": text}) + "\n" for key, text in passages))
    return Rows(path, columns={"title": "title", "text": "text"})


def written(folder: Path, stage: CorpusData) -> list[str]:
    stage.make(folder, seed=0, rank=0, world_size=1)
    return [document.id for document in DocumentFile(folder / "data/corpus.jsonl")]


def test_what_two_sources_share_comes_once_and_must_agree(tmp_path: Path) -> None:
    one = rows(tmp_path / "one.jsonl", ("a", "A tarn."), ("b", "A reed."))
    two = rows(tmp_path / "two.jsonl", ("b", "A  reed."), ("c", "A ford."))
    assert written(tmp_path / "both", CorpusData([one, two])) == ["a", "b", "c"]
    other = rows(tmp_path / "other.jsonl", ("b", "Another reed."))
    with pytest.raises(DataError, match="different passages of id 'b'"):
        written(tmp_path / "none", CorpusData([one, other]))


def test_gold_passages_alone_are_kept(tmp_path: Path) -> None:
    source = rows(tmp_path / "rows.jsonl", ("a", "A tarn."), ("b", "A reed."), ("c", "A ford."))
    questions = tmp_path / "questions.jsonl"
    hop = {"question": "Where?", "answer": "A", "passage_id": "c"}
    questions.write_text(json.dumps({"question": "q", "answer": "A", "supporting_ids": ["a"], "decomposition": [hop]}))
    assert written(tmp_path / "gold", CorpusData(source, gold_of=Rows(questions))) == ["a", "c"]
    with pytest.raises(DataError, match="no passage of the source is a gold passage of gold_of"):
        written(tmp_path / "none", CorpusData(rows(tmp_path / "b.jsonl", ("b", "")), gold_of=Rows(questions)))
