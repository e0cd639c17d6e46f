"""Labels of single steps and a reward model that is refreshed, from the world to the ranking, made small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datamodules.records import labelled_from_row, read_rows
from datamodules.tree_search import read_trees
from tests import micro
from tests.micro import artifacts, metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CONFIG = micro.CONFIGS / "reward_model" / "refresh.yaml"
SMALL = (
    *(argument for argument in micro.CHAIN if "rl_outcome" not in argument),
    "stages.rl_refresh.callbacks.refresh.every=1",
    "stages.label.data.hard_negatives={target: 'datamodules.tree.hard_negatives:MadeUp'}",
    "stages.prm.data.batch_size=4",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The stages of the arm, by name."""
    output = tmp_path_factory.mktemp("labels") / "runs"
    assert micro.run(*SMALL, f"output={output}", "--stage", "rank_refresh", config=CONFIG) == 0
    return artifacts(output, "refresh")


def accounts(folder: Path) -> dict[str, int]:
    return json.loads((folder / "manifest.json").read_text())["accounts"]


def test_every_step_in_format_of_the_trees_is_judged_and_those_of_the_rollouts_are_too(made: dict[str, Path]) -> None:
    labelled = [labelled_from_row(row) for row in read_rows(made["label"] / "data" / "labels.jsonl", "labelled/1")]
    held = [
        one.episode.turns[place].uid for one in labelled for place, label in enumerate(one.labels) if label is not None
    ]
    assert len(held) == len(set(held)) == accounts(made["label"])["judged_steps"]
    nodes = {
        path[-1].turn.uid for tree in read_trees(made["search"]) for path in tree.paths() if path[-1].turn is not None
    }
    assert nodes & set(held), "steps of the trees"
    assert set(held) - nodes, "and others"
    told = metrics(made["label"])
    assert 0 < told["steps"] == sum(value for name, value in told.items() if name.startswith("steps/"))


def test_the_reward_model_is_fitted_refreshed_and_ranked(made: dict[str, Path]) -> None:
    assert metrics(made["prm"])["loss"] > 0
    refreshed = metrics(made["rl_refresh"])
    assert {"refresh/loss", "refresh/accuracy", "refresh/steps"} <= refreshed.keys()
    assert accounts(made["rl_refresh"])["judged_steps"] >= refreshed["refresh/steps"] > 0
    before, after = (
        (made[stage] / place / "head.safetensors").read_bytes()
        for stage, place in (("prm", "model"), ("rl_refresh", "reward_model"))
    )
    assert before != after
    assert {"prm", "refreshed"} <= set(
        json.loads((made["rank_refresh"] / "data" / "steps.jsonl").read_text().splitlines()[0])["scores"]
    )
