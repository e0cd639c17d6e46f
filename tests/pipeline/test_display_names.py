from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError
from pipeline.loader import load

BASE = """\
experiment: base
parts: {beta: 0.3}
names: {make: "M, β = ${parts.beta}"}
stages:
  make: {data: {target: "a:A", path: "${parts.beta}"}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that removes a stage whose name it inherits."""
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "x.yaml").write_text("base: base.yaml\nexperiment: own\nstages: {make: null, other: {like: make}}")
    return tmp_path / "x.yaml"


def test_a_name_may_quote_parts_and_stays_where_its_stage_is_removed(path: Path) -> None:
    found = load(path, ["parts.beta=0.5", "names.other=2"]).experiment.names
    assert found == {"make": "M, β = 0.5", "other": "2"}
    assert load(path, ["names.make=null"]).experiment.names == {}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("names.othre=O", r"names.othre \(command line\) names no stage; did you mean 'other'\?"),
        ("names.other=[O]", r"names.other \(command line\) must be text, not \['O'\]"),
        ("names.other=no", r"names.other \(command line\) must be text, and no is read as False: put it in quotes"),
        ("names=3", r"names \(command line\) must be a map, not 3"),
    ],
)
def test_a_wrong_name_is_told(path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        load(path, [override])
