from __future__ import annotations

import pytest

from common.errors import ConfigError
from datamodules.tree.node import Node
from datamodules.tree.selection import AllAtOnce, Puct
from envs.types import Turn

STEP = Turn("policy", (), (1,), (-1.0,), "stop", "u")


def test_puct_scores_children_by_the_formula() -> None:
    assert Puct(2.5)([0.5, 1.0, 0.0], [0.5, 0.3, 0.2], [4, 1, 0]).tolist() == pytest.approx(
        [1.0590, 1.8385, 1.1180], abs=5e-5
    )


def test_a_node_gets_all_its_children_at_its_second_visit_and_the_root_at_its_first() -> None:
    width = AllAtOnce(3)
    assert width(Node()) == 3
    assert width(Node(STEP)) == 0
    assert width(Node(STEP, visits=1)) == 3
    assert width(Node(STEP, visits=9, children=[Node(STEP)])) == 0


def test_numbers_out_of_range_are_errors() -> None:
    with pytest.raises(ConfigError, match=r"c_puct is -1.0; it must be at least 0"):
        Puct(-1.0)
    with pytest.raises(ConfigError, match="children is 0; it must be at least 1"):
        AllAtOnce(0)
