"""Stages of a run beside its evaluations, as they lie on disk: a search, its pairs, a fit's curve, a step ranking."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch.utils.tensorboard.writer import SummaryWriter

from datamodules.records import labelled_to_row, pair_to_row, tree_to_row, write_rows
from datamodules.tree.node import Node, Tree
from envs.labelled_steps import LabelledEpisode
from envs.pairs import Pair
from envs.types import Action, Episode, Gold, GoldStep, Question, Step, Turn
from tests.evaluation.fake import step_ranking


def turn(name: str, kind: str = "query", *, says: str = "") -> Turn:
    """A turn of which `name` is the query."""
    text = says or f"says {name}"
    return Turn("policy", (), (1,), (0.0,), "stop", f"q/0/0/{name[:20]}", text=text, action=Action(kind, name))


def question(text: str = "Who?") -> Question:
    """A question with a gold chain of one hop."""
    return Question("q", text, ("Ann",), Gold(1, "bridge", (GoldStep(text, "Ann"),)))


def tree(value: float = 0.5, *, text: str = "Who?", good: str = "good", bad: str = "bad") -> Tree:
    """A tree of a good branch that ends in the answer, a bad one, and one that was not visited."""
    end = Node(turn("end", "answer"), 1.0, visits=1, value=1.0, status="answered", outcome=1.0)
    better = Node(turn(good), 0.75, visits=3, value=0.8, children=[end])
    worse = Node(turn(bad), 0.25, visits=1, value=0.1)
    idle = Node(turn("idle"), 0.1)
    return Tree(question(text), (0,), Node(visits=4, value=value, children=[better, worse, idle]))


def searched(store: Path, *trees: Tree) -> Path:
    """A finished search."""
    folder = store / "search-1"
    write_rows(folder / "data" / "trees.jsonl", map(tree_to_row, trees))
    (folder / "manifest.json").write_text(json.dumps({"kind": "make"}))
    return folder


def labelled(store: Path, reason: str, *, good: str = "good", bad: str = "bad") -> Path:
    """The pairs that a judge made of a search: the good branch is better than the bad one."""
    start, folder = Episode(question(), (0,)), store / "label-1"
    pair = Pair(replace(start, turns=[turn(good)]), replace(start, turns=[turn(bad)]), reason=reason)
    write_rows(folder / "data" / "pairs.jsonl", [pair_to_row(pair)])
    manifest = {"kind": "make", "inputs": {"search": {"artifact": "search-1"}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def labelled_steps(store: Path, labels: Sequence[float | None], *names: str) -> Path:
    """The labels of the steps of an episode that a search played out, a turn each."""
    turns, folder = [turn(name) for name in names], store / "steps-1"
    steps = tuple(Step("query", valid=True, spans=((place, 0, 1),)) for place in range(len(turns)))
    episode = Episode(question(), (0,), turns=turns, steps=steps)
    write_rows(folder / "data" / "labels.jsonl", [labelled_to_row(LabelledEpisode(episode, tuple(labels)))])
    manifest = {"kind": "make", "inputs": {"search": {"artifact": "search-1"}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def fitted(runs: Path, stage: str, points: Sequence[float], *, tag: str = "reward") -> Path:
    """A finished fit with a curve, whose events lie where TensorBoard looks for them: `runs/exp/seed0/<stage>`."""
    with SummaryWriter(runs / "exp" / "seed0" / stage) as writer:
        for update, value in enumerate(points):
            writer.add_scalar(tag, value, update)
    folder = runs / "store" / f"{stage}-1"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"kind": "fit"}))
    return folder


def every_stage(
    runs: Path, *, text: str = "Who?", reason: str = "it asks for the hop", tag: str = "reward"
) -> dict[str, Path]:
    """A search, its pairs, a fit and a ranking, by name."""
    store = runs / "store"
    return {
        "search": searched(store, tree(text=text, good=f"good {text}")),
        "label": labelled(store, reason, good=f"good {text}"),
        "rl": fitted(runs, "rl", [0.25, 0.75, 0.5], tag=tag),
        "rank": step_ranking(store / "rank-1", right=3, wrong=1),
    }


def two_policies(folder: Path) -> None:
    """Have the two evaluations of a run measure two policies, the second trained from the first by reinforcement."""
    store = folder.parents[1] / "store"
    told = json.loads((folder / "experiment.json").read_text())
    for stage, inputs in (("sft", ()), ("rl", ("sft",))):
        (store / f"{stage}-1").mkdir()
        manifest = {"kind": "fit", "inputs": {name: {"artifact": f"{name}-1"} for name in inputs}, "seconds": 90.0}
        manifest["costs"] = {"tokens": {"policy": 4000} if inputs else {}}
        (store / f"{stage}-1" / "manifest.json").write_text(json.dumps(manifest))
        measured = json.loads((store / f"eval_{stage}-1" / "manifest.json").read_text())
        measured["inputs"] = {stage: {"artifact": f"{stage}-1"}}
        (store / f"eval_{stage}-1" / "manifest.json").write_text(json.dumps(measured))
    told["stages"] = {"sft": "store/sft-1", "rl": "store/rl-1"} | told["stages"]
    (folder / "experiment.json").write_text(json.dumps(told))
