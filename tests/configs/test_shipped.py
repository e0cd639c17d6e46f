"""Every experiment file that the suite ships."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import train
from pipeline.loader import load
from pipeline.origins import leaves
from pipeline.plan import Plan

CONFIGS = Path(train.__file__).parent / "configs"
PATHS = sorted(CONFIGS.rglob("*.yaml"))
# A file that names no experiment is a base of others.
SHIPPED = [path.relative_to(CONFIGS).as_posix() for path in PATHS if "\nexperiment:" in path.read_text()]


@pytest.mark.parametrize("name", SHIPPED)
def test_it_loads_and_its_stages_have_an_order(name: str, tmp_path: Path) -> None:
    plan = Plan.of(load(CONFIGS / name, [f"data_root={tmp_path}", f"output={tmp_path}"]))
    assert set(plan.chosen) == set(plan.experiment.stages)
    assert plan.experiment.experiment == Path(name).stem


@pytest.mark.data
@pytest.mark.parametrize("name", SHIPPED)
def test_its_components_fit_their_targets(name: str, tmp_path: Path, data_root: Path) -> None:
    root = as_published(data_root, tmp_path) if name == "prorag/smollm2_2wiki.yaml" else data_root
    Plan.of(load(CONFIGS / name, [f"output={tmp_path}", f"data_root={root}"])).checked()


def as_published(data_root: Path, folder: Path) -> Path:
    """A folder with 2WikiMultiHopQA's two files, each with a part of the rows that there are in its format."""
    rows = json.loads((data_root / "2wikimultihopqa/original/2wiki_official_format.json").read_text())
    (folder / "train.json").write_text(json.dumps(rows[:450]))
    (folder / "dev.json").write_text(json.dumps(rows[450:]))
    return folder


@pytest.mark.parametrize("name", SHIPPED)
def test_it_opens_with_the_question_it_asks(name: str) -> None:
    assert (CONFIGS / name).read_text().startswith("# ")


PAPER = {
    "sft.module.control_weight": 3.0,
    "sft.module.tag_weights": None,
    "search.data.prior": "logp_mean",
    "search.data.selection.c_puct": 2.5,
    "search.data.width.children": 5,
    "search.data.depth": 10,
    "search.data.backup.discount": 0.99,
    "search.data.backup.count_rollout": True,
    "search.data.leaf_value.score": "exact",
    "label.data.pairs_per_tree": 0,
    "prm.module.read_at": "observation",
    "prm.module.features": False,
    "prm.module.pointwise": 0.0,
    "refine.data.threshold": 0.0,
    "refine.data.quantile": None,
    "rft.module.control_weight": 1.0,
    "rl.module.clip_low": 0.2,
    "rl.module.clip_high": 0.2,
    "rl.module.aggregate": "group_sum",
    "rl.module.temperature": 1.0,
    "rl.module.credit.statistics": "step",
    "rl.module.credit.scale": True,
    "rl.module.credit.beta": 0.3,
}
OFFICIAL = {
    "search.data.prior": "uniform",
    "search.data.backup.count_rollout": False,
    "search.data.leaf_value.score": "f1",
    "label.data.pairs_per_tree": 0,
    "prm.module.features": False,
    "sample.data.samples": 1,
    "sample.data.sampler.temperature": 0.8,
    "refine.data.threshold": -1e-9,
    "rl.module.aggregate": "token_mean",
    "rl.module.denominator": "all",
    "rl.module.credit.statistics": "token",
    "rl.module.credit.beta": 0.3,
    "rl.callbacks.rollout.rewards.answer_f1.reward.scale": 2.0,
    "rl.callbacks.rollout.rewards.answer_f1.reward.zero_below": 0.2,
    "rl.callbacks.rollout.rewards.step_format.reward.invalid": -2.0,
    "rl.callbacks.rollout.rewards.trajectory_format.reward.invalid": -1.0,
}


@pytest.mark.parametrize(("name", "choices"), [("paper", PAPER), ("official", OFFICIAL)])
def test_it_makes_the_choices_that_it_is_named_after(name: str, choices: dict[str, Any], tmp_path: Path) -> None:
    stages = load(CONFIGS / "prorag" / f"{name}.yaml", [f"output={tmp_path}"]).experiment.stages
    written = {".".join(map(str, key)): value for key, value in leaves({k: asdict(v) for k, v in stages.items()})}
    assert {key: written.get(key) for key in choices} == choices


def test_a_file_without_an_experiment_is_a_base_that_another_file_names() -> None:
    texts = {path: path.read_text() for path in PATHS}
    for path in PATHS:
        if path.relative_to(CONFIGS).as_posix() not in SHIPPED:
            assert any(path.name in text for other, text in texts.items() if other != path), path


@pytest.mark.parametrize(("name", "most"), [("quickstart.yaml", 130), ("prorag/qwen3_8b.yaml", 150)])
def test_it_is_read_in_a_few_minutes(name: str, most: int) -> None:
    assert (CONFIGS / name).read_text().count("\n") < most
