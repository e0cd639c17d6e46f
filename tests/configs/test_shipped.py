"""Every experiment file that the suite ships."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import train
from pipeline.loader import load
from pipeline.plan import Plan

CONFIGS = Path(train.__file__).parent / "configs"
PATHS = sorted(CONFIGS.rglob("*.yaml"))
# A file that names no experiment is a base of others.
SHIPPED = [path.relative_to(CONFIGS).as_posix() for path in PATHS if "\nexperiment:" in path.read_text()]


@pytest.fixture(scope="module", params=SHIPPED)
def shipped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Plan]:
    """Its name and its plan, over real data where there are some."""
    name, folder = request.param, tmp_path_factory.mktemp("shipped")
    root = Path(os.environ.get("RAG_DATA") or folder)
    if root != folder and name == "prorag/smollm2_2wiki.yaml":
        root = as_published(root, folder)
    return name, Plan.of(load(CONFIGS / name, [f"output={folder}", f"data_root={root}"]))


def test_it_opens_with_its_question_and_its_stages_have_an_order(shipped: tuple[str, Plan]) -> None:
    name, plan = shipped
    assert (CONFIGS / name).read_text().startswith("# ")
    assert set(plan.chosen) == set(plan.experiment.stages)
    swept = r"(_[\d.]+)?"  # one file for several values names each run by its value
    assert re.fullmatch(re.escape(Path(name).stem) + swept, plan.experiment.experiment)


@pytest.mark.data
def test_its_components_fit_their_targets(shipped: tuple[str, Plan]) -> None:
    shipped[1].checked()


def as_published(data_root: Path, folder: Path) -> Path:
    """A folder with 2WikiMultiHopQA's two files, each with a part of the rows that there are in its format."""
    rows = json.loads((data_root / "2wikimultihopqa/original/2wiki_official_format.json").read_text())
    (folder / "train.json").write_text(json.dumps(rows[:450]))
    (folder / "dev.json").write_text(json.dumps(rows[450:]))
    return folder


def test_a_file_without_an_experiment_is_a_base_that_another_file_names() -> None:
    texts = {path: path.read_text() for path in PATHS}
    for path in PATHS:
        if path.relative_to(CONFIGS).as_posix() not in SHIPPED:
            assert any(path.name in text for other, text in texts.items() if other != path), path


@pytest.mark.parametrize(("name", "most"), [("quickstart.yaml", 130), ("prorag/qwen3_8b.yaml", 150)])
def test_it_is_read_in_a_few_minutes(name: str, most: int) -> None:
    assert (CONFIGS / name).read_text().count("\n") < most
