"""Search trees and trees of rollouts as they unfold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from datamodules.tree.node import Node, Tree
from evaluation.report import trees
from evaluation.report.run import Run, Stage
from evaluation.report.trees import rollout_trees, search_trees
from evaluation.results import read_manifest
from tests.evaluation.report.stages import labelled, labelled_steps, question, searched, tree, turn


def run(tmp_path: Path, *trees: Tree) -> Run:
    stages = {"search": searched(tmp_path, *trees), "label": labelled(tmp_path, "it asks for the hop")}
    found = {name: Stage(name, path, "finished", read_manifest(path)) for name, path in stages.items()}
    return Run("exp/seed0", tmp_path, "", "", found, {}, [])


def test_a_node_has_its_figures_its_end_its_verdicts_and_its_place_on_the_most_visited_path(tmp_path: Path) -> None:
    (part,) = search_trees(run(tmp_path, tree()))
    (shown,) = part["trees"]
    root = shown["root"]
    good, bad, idle = root["children"]
    assert (part["stage"], shown["question"]["gold"], shown["cut"]) == ("search", [("Who?", "Ann")], 0)
    assert [node["figures"][0] for node in (root, good, bad, idle)] == [
        "N 4, Q 0.50, P 1.00",
        "N 3, Q 0.80, P 0.75",
        "N 1, Q 0.10, P 0.25",
        "N 0, Q –, P 0.10",
    ]
    assert [node["chosen"] for node in (root, good, good["children"][0], bad, idle)] == [True, True, True, False, False]
    assert [node["figures"][1] for node in (root, good, bad, idle)] == ["good", "good", "bad", ""]
    assert good["children"][0]["ended"] == "answered, value 1.00"
    assert good["judged"] == [("better than", "bad", "it asks for the hop")]
    assert bad["judged"] == [("worse than", "good", "it asks for the hop")]
    assert (good["kind"], good["said"]) == ("query", "says good")


def test_the_least_decided_trees_are_shown_and_the_list_says_of_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "TREES", 2)
    monkeypatch.setattr(trees, "_READ", 4)
    (part,) = search_trees(run(tmp_path, *map(tree, (0.9, 0.45, 0.1, 0.6, 0.5))))
    assert [one["root"]["figures"][0][5:11] for one in part["trees"]] == ["Q 0.45", "Q 0.60"]
    assert (part["stage"], part["searched"], part["read"]) == ("search", 5, 4)


def test_a_large_tree_keeps_its_most_visited_path_then_its_most_visited_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path comes last among its siblings, and its end has fewer visits than what is beside it."""
    end = Node(turn("end", "answer"), 1.0, visits=1, value=1.0, status="answered", outcome=1.0)
    path = Node(turn("path"), 0.5, visits=6, value=0.9, children=[end])
    rare, often = (Node(turn(name), 0.1, visits=visits, value=0.1) for name, visits in (("rare", 1), ("often", 5)))
    rare.children = [Node(turn("below"), 1.0, visits=1, value=0.1)]
    large = Tree(question(), (0,), Node(visits=12, value=0.5, children=[rare, often, path]))
    monkeypatch.setattr(trees, "NODES", 4)
    (part,) = search_trees(run(tmp_path, large))
    (shown,) = part["trees"]
    assert [child["said"] for child in shown["root"]["children"]] == ["says often", "says path"], "in their order"
    assert shown["root"]["children"][1]["children"][0]["ended"] == "answered, value 1.00"
    assert shown["cut"] == 2, "rare, and the node below it"


def test_pairs_of_another_search_are_not_of_this_one(tmp_path: Path) -> None:
    other = run(tmp_path, tree())
    other.stages["label"] = replace(other.stages["label"], manifest={"inputs": {"search": {"artifact": "search-2"}}})
    (part,) = search_trees(other)
    assert part["trees"][0]["root"]["children"][0]["judged"] == ()


def test_a_node_has_the_label_of_its_step(tmp_path: Path) -> None:
    one = run(tmp_path, tree())
    labels = labelled_steps(tmp_path, [1.0, None, 0.25], "good", "idle", "end")
    one.stages["label"] = Stage("label", labels, "finished", read_manifest(labels))
    good, _, idle = next(search_trees(one))["trees"][0]["root"]["children"]
    assert good["judged"] == [("right (label 1.00)", "", "")]
    assert good["children"][0]["judged"] == [("wrong (label 0.25)", "", "")]
    assert idle["judged"] == ()


def path(reward: float | None, *uids: str) -> dict:
    steps = [
        {"kind": "decide", "text": uid, "valid": True, "hits": [], "said": f"says {uid}", "uid": uid} for uid in uids
    ]
    told = {"id": "q", "question": "Who?", "answers": ["Ann"], "prediction": "Ann", "status": "answered"}
    return told | {"outcome": {"reward": reward}, "steps": steps}


def test_episodes_that_share_turns_are_a_tree_whose_values_are_its_leaves_means() -> None:
    (shown,) = rollout_trees([path(1.0, "a", "b"), path(0.5, "a", "c"), path(None, "d")])
    root = shown["root"]
    shared, alone = root["children"]
    assert [node["figures"][0] for node in (root, shared, alone)] == [
        "3 leaves, mean reward 0.75",
        "2 leaves, mean reward 0.75",
        "1 leaf, mean reward –",
    ]
    assert [node["figures"][0] for node in shared["children"]] == [
        "1 leaf, mean reward 1.00",
        "1 leaf, mean reward 0.50",
    ]
    assert shared["children"][0]["ended"] == "answered: Ann"


def test_independent_episodes_are_no_tree() -> None:
    assert rollout_trees([path(1.0, "a"), path(0.0, "b")]) == []
