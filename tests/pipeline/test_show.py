"""A stage as all files leave it: YAML to copy, each line with the place where it is written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigError
from pipeline.loader import load
from pipeline.locations import Locations
from pipeline.show import shown
from pipeline.yaml_reader import COMMAND_LINE, parse

BASE = """\
experiment: base
parts:
  policy: {target: "p:P", size: 2}
  lr: 1e-3
stages:
  sft:
    module: {target: "m:M", policy: "${parts.policy}", lr: "${parts.lr}"}
    data: {target: "d:D", hops: [1, 2], none: {}}
"""
FILE = 'base: base.yaml\nstages:\n  rl: {like: sft, data: {path: "${stage:sft}/x"}}\n'
RL = """\
rl:                      # x.yaml:3
  module:                # base.yaml:7
    target: m:M          # base.yaml:7
    policy:              # command line, as ${parts.policy} at base.yaml:7
      target: p:P        # base.yaml:3
      size: 5            # command line
    lr: 0.001            # base.yaml:4, as ${parts.lr} at base.yaml:7
  data:                  # x.yaml:3
    target: d:D          # base.yaml:8
    hops:                # base.yaml:8
      - 1                # base.yaml:8
      - 2                # base.yaml:8
    none: {}             # base.yaml:8
    path: ${stage:sft}/x # x.yaml:3"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(BASE)
    Path("x.yaml").write_text(FILE)
    return Path("x.yaml")


def test_every_line_has_the_place_where_it_is_written(here: Path) -> None:
    text = shown("rl", load(here, ["parts.policy.size=5"]))
    assert [line.split() for line in text.splitlines()] == [line.split() for line in RL.splitlines()]


def test_what_is_shown_can_be_copied(here: Path) -> None:
    configuration = load(here)
    assert parse(shown("rl", configuration), COMMAND_LINE, {}) == {"rl": configuration.resolved["stages"]["rl"]}
    copy = BASE + "".join(f"  {line}\n" for line in shown("rl", configuration).splitlines())
    here.write_text(copy)
    assert load(here).experiment.stages["rl"] == configuration.experiment.stages["rl"]


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
VALUES = TEXTS | st.floats(allow_nan=False) | st.booleans() | st.integers() | st.none()


@given(st.dictionaries(TEXTS, VALUES))
def test_any_setting_is_read_as_it_is_shown(settings: dict[str, object]) -> None:
    plain: Any = SimpleNamespace(resolved={"stages": {"a": settings}}, locations=Locations({(): "x.yaml"}, {}))
    found = parse(shown("a", plain), COMMAND_LINE, {})
    assert found == {"a": settings}
    assert [type(value) for value in found["a"].values()] == [type(value) for value in settings.values()]


def test_an_unknown_stage_is_named(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"^unknown stage 'sfd' on the command line; did you mean 'sft'\?$"):
        shown("sfd", load(here))
