"""Trees as they unfold on a page: of a search, with the pairs judged in it, and of a rollout, with its leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from statistics import fmean

from datamodules.records import PAIR, TREE, read_rows
from evaluation.tables import MISSING
from evaluation.view_run import Run
from evaluation.view_steps import shown_question
from evaluation.view_text import Row, printable

TREES, NODES = 6, 150  # of a search that a page shows, and nodes of a tree
_READ = 400  # trees among which the least decided are looked for

Judged = Mapping[str, Sequence[tuple[str, str, str]]]  # by the uid of a turn: better or worse, than which, why


def search_trees(run: Run) -> Iterator[tuple[str, list[Row]]]:
    """The stages of a run that searched, each with the trees whose value is nearest to a half: least is decided there.

    A node has its step, `visits`, `value` (mean backed-up value, Q), `prior`, how its episode ended, the verdicts on
    it (`judged`), and whether it is on the most visited path (`chosen`).
    """
    for stage, folder in run.artifacts.items():
        path = folder / "data" / "trees.jsonl"
        if path.exists():
            rows = sorted(islice(read_rows(path, TREE), _READ), key=lambda row: abs(row["root"]["value"] - 0.5))
            judged = _judged(run, folder.name, {row["question"]["id"] for row in rows[:TREES]})
            yield stage, [_search_tree(row, judged) for row in rows[:TREES]]


def rollout_trees(rows: Sequence[Row]) -> list[Row]:
    """Trees of the kept episodes that share turns, as SIRAG samples them: a node's value is its leaves' mean reward."""
    trees: list[Row] = []
    for _, group in groupby(rows, key=lambda row: row["id"]):
        episodes = list(group)
        turns = [{step["uid"] for step in row["steps"] if "uid" in step} for row in episodes]
        if sum(map(len, turns)) > len(set().union(*turns)):
            root = _shared_node([(row, row["steps"]) for row in episodes], None)
            trees.append({"question": shown_question(episodes[0]), "root": root, "cut": False})
    return trees


def _search_tree(row: Row, judged: Judged) -> Row:
    question = row["question"]
    gold = question["gold"] or {"hops": None, "type": None, "steps": []}
    shown = {**question, "question": question["text"], "hops": gold["hops"], "type": gold["type"], "gold": gold}
    growth = _Growth(judged)
    root = growth.node(row["root"], chosen=True)
    return {"question": shown_question(shown), "root": root, "cut": growth.cut}


@dataclass(slots=True)
class _Growth:
    """Makes the nodes of a search tree, depth first, until there are `NODES`."""

    judged: Judged
    made: int = 0
    cut: bool = False

    def node(self, node: Row, *, chosen: bool) -> Row:
        self.made += 1
        turn = node["turn"] or {"action": {"kind": "question"}, "text": "", "uid": ""}
        visited = [child for child in node["children"] if child["visits"]] if chosen else []
        best = max(visited, key=lambda child: (child["visits"], child["value"]), default=None)
        value = node["value"] if node["visits"] else None
        children: list[Row] = []
        for child in node["children"]:
            self.cut |= self.made >= NODES
            if self.made < NODES:
                children.append(self.node(child, chosen=child is best))
        ended = "" if node["status"] is None else f"{node['status']}, value {_two(node['outcome'])}"
        return {
            "kind": printable(turn["action"]["kind"], 40),
            "said": printable(turn["text"], 400),
            "figures": f"N {node['visits']}, Q {_two(value)}, P {_two(node['prior'])}",
            "value": value,
            "ended": ", ".join(filter(None, [ended, "dead" if node["dead"] else ""])),
            "judged": self.judged.get(turn["uid"], ()),
            "chosen": chosen,
            "children": children,
        }


def _shared_node(paths: Sequence[tuple[Row, Sequence[Row]]], step: Row | None) -> Row:
    """The node of a step that begins the rest of some episodes: (episode, its steps from there on)."""
    rewards = [row["outcome"]["reward"] for row, _ in paths if row["outcome"].get("reward") is not None]
    value = fmean(rewards) if rewards else None
    deeper = [(row, steps) for row, steps in paths if steps]
    branches = groupby(deeper, key=lambda path: path[1][0].get("uid"))
    ended = [row for row, steps in paths if not steps]
    return {
        "kind": printable(step["kind"] if step else "question", 40),
        "said": printable(step.get("said") or step["text"] if step else "", 400),
        "figures": f"{len(paths)} {'leaf' if len(paths) == 1 else 'leaves'}, mean reward {_two(value)}",
        "value": value,
        "ended": ", ".join(f"{row['status']}: {printable(row['prediction'], 80)}" for row in ended),
        "judged": (),
        "chosen": False,
        "children": [
            _shared_node([(row, steps[1:]) for row, steps in members], members[0][1][0])
            for members in (list(group) for _, group in branches)
        ],
    }


def _judged(run: Run, search: str, questions: set[str]) -> Judged:
    """The verdicts on steps of some questions in the stages that made pairs of this search."""
    verdicts: dict[str, list[tuple[str, str, str]]] = {}
    for stage in run.stages.values():
        path = stage.folder / "data" / "pairs.jsonl"
        inputs = [each["artifact"] for each in stage.manifest.get("inputs", {}).values()]
        if stage.state == "finished" and search in inputs and path.exists():
            for row in read_rows(path, PAIR):
                if row["history"]["question"]["id"] in questions:
                    better, worse = (_last_turn(row, side) for side in ("chosen", "rejected"))
                    reason = printable(row["reason"], 200)
                    verdicts.setdefault(better["uid"], []).append(("better than", _short(worse), reason))
                    verdicts.setdefault(worse["uid"], []).append(("worse than", _short(better), reason))
    return verdicts


def _last_turn(row: Row, side: str) -> Row:
    return (row["history"]["turns"] + row[side]["turns"])[-1]


def _short(turn: Row) -> str:
    return printable(turn["action"]["text"] or turn["text"], 100)


def _two(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"
