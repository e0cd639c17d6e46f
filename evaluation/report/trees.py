"""Trees on a page: of a search with its verdicts, and of a rollout with its leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush, nsmallest
from itertools import count, groupby, islice
from pathlib import Path
from statistics import fmean
from typing import Any

from datamodules.records import LABELLED, PAIR, TREE, read_rows
from evaluation.report.episodes import printable, shown_question
from evaluation.report.run import Run
from evaluation.tables import MISSING

Row = dict[str, Any]
Verdict = tuple[str, str, str]  # better or worse, than which, why; or how right, by itself
Verdicts = Mapping[str, Sequence[Verdict]]  # by the uid of a turn

TREES, NODES = 6, 150  # of a search that a page shows, and nodes of a tree
_READ = 400  # trees among which the least decided are looked for


def search_trees(run: Run) -> Iterator[Row]:
    """The search stages of a run, each with the trees that are least decided: their values are nearest to a half.

    A node has its step, `visits`, `value` (mean backed-up value, Q), `prior`, how its episode ended, the verdicts on
    it (`judged`), whether it is on the most visited path (`chosen`), and its `size` in a drawing: its visits.
    """
    for stage, folder in run.artifacts.items():
        path = folder / "data" / "trees.jsonl"
        if path.exists():
            first = islice(read_rows(path, TREE), _READ)
            rows = nsmallest(TREES, first, key=lambda row: abs(row["root"]["value"] - 0.5))
            judged = _verdicts(run, folder.name, {row["question"]["id"] for row in rows})
            with path.open("rb") as file:
                searched = sum(1 for _ in file)
            entry = {"stage": run.prefix + stage, "searched": searched, "read": min(searched, _READ)}
            yield entry | {"trees": [_search_tree(row, judged) for row in rows]}


def rollout_trees(rows: Sequence[Row]) -> list[Row]:
    """Trees of the kept episodes that share turns, as SIRAG samples them: a node's value is its leaves' mean reward."""
    trees: list[Row] = []
    for _, group in groupby(rows, key=lambda row: row["id"]):
        episodes = list(group)
        turns = [{step["uid"] for step in row["steps"] if "uid" in step} for row in episodes]
        if sum(map(len, turns)) > len(set().union(*turns)):
            root = _shared_node([(row, row["steps"]) for row in episodes], None)
            trees.append({"question": shown_question(episodes[0]), "root": root, "cut": 0})
    return trees


def _search_tree(row: Row, judged: Verdicts) -> Row:
    question = row["question"]
    gold = question["gold"] or {"hops": None, "type": None, "steps": []}
    asked = {**question, "question": question["text"], "hops": gold["hops"], "type": gold["type"], "gold": gold}
    path, kept, left_out = _grown(row["root"])
    return {"question": shown_question(asked), "root": _node(row["root"], path, kept, judged), "cut": left_out}


def _grown(root: Row) -> tuple[set[int], set[int], int]:
    """The most visited path, the nodes that a page shows, both by identity, and the number of those that it leaves out.

    The path comes first, then the most visited nodes.
    """
    path, node = {id(root)}, root
    while visited := [child for child in node["children"] if child["visits"]]:
        node = max(visited, key=lambda child: (child["visits"], child["value"]))
        path.add(id(node))
    kept, place = set[int](), count()
    border = [(False, 0, next(place), root)]
    while border and len(kept) < NODES:
        *_, node = heappop(border)
        kept.add(id(node))
        for child in node["children"]:
            heappush(border, (id(child) not in path, -child["visits"], next(place), child))
    return path, kept, sum(_size(node) for *_, node in border)


def _size(node: Row) -> int:
    return 1 + sum(map(_size, node["children"]))


def _node(node: Row, path: set[int], kept: set[int], judged: Verdicts) -> Row:
    turn = node["turn"] or {"action": {"kind": "question"}, "text": "", "uid": ""}
    value = node["value"] if node["visits"] else None
    ended = "" if node["status"] is None else f"{node['status']}, value {_two(node['outcome'])}"
    return {
        "kind": printable(turn["action"]["kind"], 40),
        "said": printable(turn["text"], 400),
        "size": node["visits"],
        "figures": (f"N {node['visits']}, Q {_two(value)}, P {_two(node['prior'])}", _tone(value), 1.0),
        "ended": ", ".join(filter(None, [ended, "dead" if node["dead"] else ""])),
        "judged": judged.get(turn["uid"], ()),
        "chosen": id(node) in path,
        "children": [_node(child, path, kept, judged) for child in node["children"] if id(child) in kept],
    }


def _shared_node(paths: Sequence[tuple[Row, Sequence[Row]]], step: Row | None) -> Row:
    """The node of a step that some episodes share; each is given as (episode, its steps from there on)."""
    rewards = [row["outcome"]["reward"] for row, _ in paths if row["outcome"].get("reward") is not None]
    value = fmean(rewards) if rewards else None
    branches = groupby((each for each in paths if each[1]), key=lambda path: path[1][0].get("uid"))
    ended = [row for row, steps in paths if not steps]
    leaves = f"{len(paths)} {'leaf' if len(paths) == 1 else 'leaves'}"
    return {
        "kind": printable(step["kind"] if step else "question", 40),
        "said": printable(step.get("said") or step["text"] if step else "", 400),
        "size": len(paths),
        "figures": (f"{leaves}, mean reward {_two(value)}", _tone(value), 1.0),
        "ended": ", ".join(f"{row['status']}: {printable(row['prediction'], 80)}" for row in ended),
        "judged": (),
        "chosen": False,
        "children": [
            _shared_node([(row, steps[1:]) for row, steps in members], members[0][1][0])
            for members in (list(group) for _, group in branches)
        ],
    }


def _tone(value: float | None) -> str:
    return "" if value is None else "good" if value >= 0.5 else "bad"


def _two(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _verdicts(run: Run, search: str, questions: set[str]) -> Verdicts:
    """Verdicts on steps of some questions, from the stages that judged pairs or single steps of this search."""
    found: dict[str, list[Verdict]] = {}
    for stage in run.stages.values():
        inputs = [each["artifact"] for each in stage.manifest.get("inputs", {}).values()]
        if stage.state == "finished" and search in inputs:
            for verdicts_in in (_compared, _labelled):
                for uid, verdict in verdicts_in(stage.folder / "data", questions):
                    found.setdefault(uid, []).append(verdict)
    return found


def _compared(data: Path, questions: set[str]) -> Iterator[tuple[str, Verdict]]:
    for row in _rows(data / "pairs.jsonl", PAIR):
        if row["history"]["question"]["id"] in questions:
            better, worse = ((row["history"]["turns"] + row[side]["turns"])[-1] for side in ("chosen", "rejected"))
            reason = printable(row["reason"], 200)
            yield better["uid"], ("better than", _short(worse), reason)
            yield worse["uid"], ("worse than", _short(better), reason)


def _labelled(data: Path, questions: set[str]) -> Iterator[tuple[str, Verdict]]:
    for row in _rows(data / "labels.jsonl", LABELLED):
        episode = row["episode"]
        if episode["question"]["id"] in questions:
            for step, label in zip(episode["steps"], row["labels"], strict=True):
                if label is not None:
                    turn = episode["turns"][step["spans"][-1][0]]
                    yield turn["uid"], (f"{'right' if label >= 0.5 else 'wrong'} (label {label:.2f})", "", "")


def _rows(path: Path, schema: str) -> Iterator[Row]:
    return read_rows(path, schema) if path.exists() else iter(())


def _short(turn: Row) -> str:
    return printable(turn["action"]["text"] or turn["text"], 100)
