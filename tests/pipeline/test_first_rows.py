"""What a dry run shows of the inputs, or says about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import DataError
from pipeline.first_rows import first_rows
from pipeline.loader import load
from pipeline.plan import Plan


def planned(folder: Path, data: dict[str, Any]) -> Plan:
    settings = {"experiment": "x", "output": str(folder / "runs"), "stages": {"first": {"data": {"target": "a.b:C"}}}}
    settings["stages"]["second"] = {"data": {"target": "a.b:C", "one": 1, **data}}
    path = folder / "x.yaml"
    path.write_text(json.dumps(settings, indent=1))
    return Plan.of(load(path))


def source(path: Path, **settings: Any) -> dict[str, Any]:
    return {"questions": {"target": "datamodules.sources.rows:Rows", "path": str(path), **settings}}


def test_one_question_of_each_input_and_one_passage_of_each_corpus_are_shown(tmp_path: Path) -> None:
    questions, passages = tmp_path / "q.csv", tmp_path / "c.csv"
    questions.write_text('question,answer\nWho?\x1b[2J,"[""Ada"", ""A.""]"\nWhere?,Oslo\n')
    passages.write_text(f"id,title,text\na,Zebra,{'x' * 200}\nb,Oslo,A city.\n")
    data: dict[str, Any] = {"a": source(questions, limit=1), "b": source(questions, part=[0.0, 1.0])}
    data |= {"c": {"target": "d.e:F", "corpus": str(passages)}}
    data |= {"d": {"corpus": "${stage:first}/data/corpus.jsonl"}, "e": source("${stage:first}/q.jsonl")}  # type: ignore[arg-type]
    lines = first_rows(planned(tmp_path, data)).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("first question of stages.second.data.a.questions (")
    assert lines[0].endswith("): row-1 | Who?\\x1b[2J | Ada / A.")
    assert lines[1].startswith("first passage of stages.second.data.c.corpus (")
    assert lines[1].endswith(f"): a | Zebra | {'x' * 159}…")


def test_what_is_wrong_with_an_input_is_found(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("Frage,answer\nWho?,Ada\n")
    with pytest.raises(DataError, match=r"q\.csv:2: no column 'question'"):
        first_rows(planned(tmp_path, source(path, columns={"question": "question"})))
