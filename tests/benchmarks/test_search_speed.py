"""Ways of searching: the same trees one after the other as all at once, and what they count."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import search
from benchmarks.equal_turns import Work, equal_turns
from benchmarks.made_up_episodes import WORLD_BASE
from benchmarks.search import Search
from datamodules.tree.node import Node
from datamodules.tree.search import SearchSettings
from datamodules.tree.selection import AllAtOnce
from envs.types import Question
from modules.policy import load_policy
from modules.samplers.in_process import InProcessSampler

TINY = [
    "--trees",
    "2",
    "--simulations",
    "3",
    "--children",
    "2",
    "--turns",
    "2",
    "--turn-tokens",
    "4",
    "--observation",
    "8",
    "--prompt",
    "16",
]


def shape(node: Node) -> tuple[object, ...]:
    """Tokens, visits and value of a tree."""
    ids = () if node.turn is None else node.turn.action_ids
    return (ids, node.visits, node.value, *map(shape, node.children))


def test_a_tree_is_the_same_alone_and_among_others() -> None:
    sampler = InProcessSampler(load_policy(str(WORLD_BASE), device="cpu"))
    environment = equal_turns(WORLD_BASE, Work(turns=2, turn_tokens=4, observation=8, prompt=16))
    settings = SearchSettings(4, width=AllAtOnce(2))
    questions = [Question(f"q{number}", f"Who is {number}?", ("a",)) for number in range(3)]
    together, alone = (Search(environment, sampler, settings, together=both) for both in (True, False))
    for way in (together, alone):
        way(questions)
        assert way.simulations() == 3 * 4
    assert [shape(tree.root) for tree in together.trees] == [shape(tree.root) for tree in alone.trees]


def test_all_ways_make_the_same_number_of_simulations(tmp_path: Path) -> None:
    search.main([*TINY, "--repeats", "1", "--threads", "1", "--json", str(tmp_path / "out.json")])
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["way"] for row in rows] == ["many trees", "one tree", "one tree, generate"]
    assert [row["simulations"] for row in rows] == [6, 6, 6]
    assert rows[1]["expansions"] == rows[2]["expansions"]
    assert all(2 <= row["expansions"] <= row["simulations"] for row in rows)
