"""Every experiment file that the suite ships."""

from __future__ import annotations

from pathlib import Path

import pytest

import train
from configs.loader import load
from configs.plan import Plan

CONFIGS = Path(train.__file__).parent / "configs"
SHIPPED = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_it_loads_and_its_stages_have_an_order(name: str, tmp_path: Path) -> None:
    plan = Plan.of(load(CONFIGS / name, [f"data_root={tmp_path}", f"output={tmp_path}"]))
    assert set(plan.chosen) == set(plan.experiment.stages)
    assert plan.experiment.experiment == Path(name).stem


@pytest.mark.data
@pytest.mark.parametrize("name", SHIPPED)
def test_its_components_fit_their_targets(name: str, tmp_path: Path) -> None:
    Plan.of(load(CONFIGS / name, [f"output={tmp_path}"])).checked()


@pytest.mark.parametrize("name", SHIPPED)
def test_it_opens_with_the_question_it_asks(name: str) -> None:
    assert (CONFIGS / name).read_text().startswith("# ")
