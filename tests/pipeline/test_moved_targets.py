"""Targets of earlier versions: one line says where each is now."""

from __future__ import annotations

import importlib

import pytest

from common.errors import ConfigError
from pipeline.components import locate
from pipeline.locations import Locations
from pipeline.moved_targets import MOVED
from pipeline.skeletons import reading

KEY = ("stages", "chosen", "data")


@pytest.mark.parametrize("new", sorted(set(MOVED.values())))
def test_a_component_is_where_it_moved_to(new: str) -> None:
    module, _, name = new.partition(":")
    assert new not in MOVED
    assert callable(getattr(importlib.import_module(module), name))


def test_an_old_target_is_refused_with_the_new_one_read_or_imported() -> None:
    locations = Locations({}, {})
    line = r"'systems.reasonrag.chosen_turns:ChosenTurns' at stages.chosen.data.target.* has moved: write "
    line += "'systems.reasonrag.sft_on_chosen:SftOnChosen'"
    with pytest.raises(ConfigError, match=line):
        locate("systems.reasonrag.chosen_turns:ChosenTurns", KEY, locations)
    with reading(), pytest.raises(ConfigError, match=line):
        locate("systems.reasonrag.chosen_turns:ChosenTurns", KEY, locations)
