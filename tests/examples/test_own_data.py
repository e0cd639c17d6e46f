"""The example of own data: its files hold together, and its experiment runs whole with a tiny model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import micro
from tests.chat_server import chat_server
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
    titles = {row["title"] for row in rows(FOLDER / "corpus.jsonl")}
    questions = rows(FOLDER / "questions.jsonl")
    assert len(passages) == 100
    assert Counter(row["split"] for row in questions) == {"sft": 100, "rl": 60, "test": 80}
    assert len({row["question"] for row in questions}) == len({row["id"] for row in questions}) == 240
    for row in questions:
        assert ("decomposition" in row) == (row["split"] == "sft")
        for step in row.get("decomposition", ()):
            assert step["answer"] in passages[step["passage_id"]]
        if "decomposition" in row:
            assert row["decomposition"][-1]["answer"] in row["answers"]
        assert set(row.get("titles", ())) <= titles


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


@pytest.mark.slow
def test_a_chat_model_writes_the_episodes_where_there_are_no_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README's second row: a server's turns in ProRAG's format; an episode with a wrong answer is dropped."""
    right = {row["question"]: row["answers"][0] for row in rows(FOLDER / "questions.jsonl")}
    asked = [row["question"] for row in rows(FOLDER / "questions.jsonl") if row["split"] == "rl"][:3]

    def reply(user: str) -> dict[str, str]:
        context = json.loads(user)["context"]
        question = next(one for one in right if f"Question: {one}" in context)
        if "<retrieval>" not in context:
            return {"text": f"I look it up. </step>\n<subquery>\n{question} </subquery>"}
        if context.count("<subanswer>") == context.count("<retrieval>") - 1:
            return {"text": f"It is written here. </step>\n<subanswer>\n{right[question]} </subanswer>"}
        return {
            "text": f"I know it. </step>\n<answer>\n{right[question] if question != asked[1] else 'Oslo'} </answer>"
        }

    monkeypatch.setenv("OPENAI_API_KEY", "k")
    tiny_policy(byte_tokenizer([])).save(tmp_path / "model")
    with chat_server(reply) as server:
        client = f'{{target: "common.chat_client:ChatClient", model: m, base_url: "{server.url}", cache: {tmp_path}/c}}'
        chat = "modules.samplers.chat_sampler:ChatSampler"
        sampler = f'{{target: "{chat}", client: {client}, protocol: "${{parts.protocol}}"}}'
        given = (
            *(f"parts.model={tmp_path / 'model'}", f"output={tmp_path / 'runs'}", "devices=1"),
            *("parts.protocol.instruction=Search.", "parts.limits.total_tokens=9000", "parts.limits.turn_tokens=400"),
            *(
                "parts.taught_questions.split=rl",
                "parts.taught_questions.limit=3",
                f"stages.teach.data.sampler={sampler}",
            ),
            "stages.teach.data.keep=correct",
        )
        assert micro.run(*given, "--stage", "teach", config=FOLDER / "own_data.yaml") == 0
    taught = rows(micro.artifacts(tmp_path / "runs", "own_data")["teach"] / "data" / "episodes.jsonl")
    assert [episode["question"]["text"] for episode in taught] == [asked[0], asked[2]]
