"""The page of a run with every system and baseline: real episodes of each format, and numbers that are the files'."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from datamodules.records import read_rows
from pipeline.loader import load
from tests import micro
from tests.evaluation.report.fakes import Page

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow
TEACHERS = ("hiprag_teacher", "reasonrag_teacher", "sirag_teacher")
UNTRAINED = ("prorag_sft", "search_r1_sft", "hiprag_sft", "reasonrag_sft", "sirag_sft")
BASELINES = ("naive", "standard_rag", "iter_retgen", "ircot", "flare", "search_o1")
# Policies that have learnt nothing, by the part that loads them and the stage whose tokens they write.
POLICIES = {
    "sft_policy": "world",
    **{f"{system}_start": f"{system}_tokenizer" for system in ("search_r1", "hiprag", "reasonrag")},
    **{f"sirag_{agent}": "sirag_tokenizer" for agent in ("decision_maker", "knowledge_selector")},
    "reader": "reader_tokenizer",
}


@cache
def names() -> dict[str, str]:
    return load(ROOT / "configs" / "compare.yaml").experiment.names


def shown_as(arm: str) -> str:
    """The display name of an arm."""
    return names().get(f"eval_{arm}", f"eval_{arm}")


def untrained(stage: str) -> str:
    return (
        f'{{target: "modules.policy:random_policy", tokenizer: "${{stage:{stage}}}/tokenizer", '
        "hidden_size: 32, layers: 1, heads: 2, kv_heads: 1, feed_forward: 32}"
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("systems") / "runs"
    policies = (f"parts.{part}={untrained(stage)}" for part, stage in POLICIES.items())
    chosen = (word for name in TEACHERS + UNTRAINED + BASELINES for word in ("--stage", f"eval_{name}"))
    settings = (*micro.TINY_WORLD, *policies, "devices=1", f"output={output}")
    assert micro.run(*settings, *chosen, config=micro.CONFIGS / "compare.yaml") == 0
    return output


def test_every_system_is_on_the_page_with_the_numbers_of_its_files(runs: Path) -> None:
    shown = Page((runs / "compare" / "seed0" / "report.html").read_text())
    assert "Could not be read" not in shown.html
    assert "Not finished:" in shown.html, "the stages that train"
    assert len(shown.ids) == len(set(shown.ids))
    stages = micro.artifacts(runs, "compare")
    for name in TEACHERS + UNTRAINED + BASELINES:
        rows = list(read_rows(stages[f"eval_{name}"] / "data" / "predictions-world-test.jsonl", None))
        told = shown.counts()[shown_as(name)]
        assert (told["n"], told["mistakes"]["wrong"]) == (len(rows), sum(row["em"] == 0 for row in rows))
    for name in TEACHERS:
        assert shown.counts()[shown_as(name)]["mistakes"]["wrong"] == 0, "a teacher is right"


def test_an_episode_of_two_agents_says_who_kept_what(runs: Path) -> None:
    shown = Page((runs / "compare" / "seed0" / "report.html").read_text())
    episodes = [one for each in shown.data["questions"] for one in each["episodes"]]
    of_sirag = [one["steps"] for one in episodes if one["arm"] == shown_as("sirag_teacher")]
    assert of_sirag
    for steps in of_sirag:
        assert {"decision_maker"} < {step["agent"] for step in steps}
        assert any(step["evidence"] for step in steps)
    assert any("kept" in marks for steps in of_sirag for step in steps for *_, marks in step["hits"])
