from __future__ import annotations

from modules.rewards.search_cost import search_cost
from tests.modules.rewards.test_rewards import CONTEXT, RIGHT, SILENT


def test_every_search_has_its_price() -> None:
    assert [row.tolist() for row in search_cost([RIGHT, SILENT], CONTEXT)] == [[-1, 0, 0], [-1, 0]]
