from __future__ import annotations

import math

import pytest

from common.errors import ConfigError
from datamodules.tree.node import Node
from datamodules.tree.selection import AllAtOnce, OneAtATime, Puct, Uct
from envs.types import Turn

STEP = Turn("policy", (), (1,), (-1.0,), "stop", "u")


def test_uct_scores_children_by_the_formula_and_an_unvisited_one_first() -> None:
    """ln 5 = 1.6094: .5 + 1.414 · sqrt(.40236), 1 + 1.414 · sqrt(1.6094)."""
    scores = Uct()([0.5, 1.0, 0.0], [0.9, 0.1, 0.0], [4, 1, 0], 5)
    assert scores.tolist() == pytest.approx([1.3969, 2.7938, math.inf], abs=1e-4)
    assert Uct(0.0)([0.5, 0.2], [0.5, 0.5], [1, 3], 5).tolist() == [0.5, 0.2]
    assert Uct()([0.0, 0.0], [0.5, 0.5], [0, 0], 0).tolist() == [math.inf, math.inf]


def test_the_visits_of_the_parent_are_not_those_of_its_children_alone() -> None:
    """Valued once itself, ln 4: 0.95 + 1.414 · sqrt(.69315) = 2.1272 and .5 + 1.414 · sqrt(1.3863) = 2.1649."""
    assert Uct()([0.95, 0.5], [0.5, 0.5], [2, 1], 4).tolist() == pytest.approx([2.1272, 2.1649], abs=1e-4)


def test_a_node_gets_its_children_one_at_a_time() -> None:
    one, twice = Node(STEP), Node(STEP, multiplicity=2)
    assert [OneAtATime(2)(Node(STEP, children=children)) for children in ([], [one], [one, one])] == [1, 1, 0]
    assert OneAtATime(2)(Node(STEP, children=[twice])) == 0, "two samples were the same step"
    assert [OneAtATime(2, samples=n)(Node(STEP, children=[twice])) for n in (2, 3)] == [0, 1]


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
    with pytest.raises(ConfigError, match=r"exploration is -1.0; it must be at least 0"):
        Uct(-1.0)
    for children, samples in ((0, None), (3, 2)):
        with pytest.raises(ConfigError, match=f"children is {children}, samples {samples}; children must be at least"):
            OneAtATime(children, samples)
