"""The example of own data: its files hold together, and its experiment runs whole with a tiny model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import micro
from tests.tiny import byte_tokenizer, tiny_policy

FOLDER = Path(__file__).parents[2] / "examples" / "own_data"
SMALL = (
    *(
        "devices=1",
        "parts.taught_questions.sample=4",
        "parts.rl_questions.sample=2",
        "parts.test.own.questions.sample=2",
    ),
    *("parts.limits.total_tokens=4000", "parts.limits.observation_tokens=1000"),
    *("parts.limits.turn_tokens=400", "stages.sft.trainer.max_epochs=1", "stages.rl.trainer.max_epochs=1"),
    *("stages.rl.data.questions_per_iteration=2", "stages.rl.data.group_size=2", "parts.limits.turns=7"),
)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_step_is_read_in_its_passage_and_the_last_gives_the_answer() -> None:
    passages = {row["id"]: row["text"] for row in rows(FOLDER / "corpus.jsonl")}
    questions = rows(FOLDER / "questions.jsonl")
    assert len(passages) == 100
    assert Counter(row["split"] for row in questions) == {"sft": 100, "rl": 60, "test": 80}
    assert len({row["question"] for row in questions}) == len({row["id"] for row in questions}) == 240
    for row in questions:
        assert ("decomposition" in row) == (row["split"] == "sft")
        for step in row.get("decomposition", ()):
            assert step["answer"] in passages[step["passage_id"]]
        assert row.get("decomposition", [{"answer": row["answers"][0]}])[-1]["answer"] in row["answers"]


@pytest.mark.slow
def test_the_experiment_runs_whole(tmp_path: Path) -> None:
    tiny_policy(byte_tokenizer([])).save(tmp_path / "model")
    settings = (f"parts.model={tmp_path / 'model'}", f"output={tmp_path / 'runs'}", *SMALL)
    assert micro.run(*settings, config=FOLDER / "own_data.yaml") == 0
    made = micro.artifacts(tmp_path / "runs", "own_data")
    taught = rows(made["teach"] / "data" / "episodes.jsonl")
    assert len(taught) == 4
    assert (made["rl"] / "adapter" / "adapter_config.json").exists()
    for stage in ("eval_untrained", "eval_sft", "eval_rl"):
        assert len(rows(made[stage] / "data" / "predictions-own-test.jsonl")) == 2
