"""Preferences as a stage: a judge compares steps of the search trees, and pairs come of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import ConfigError, DataError
from common.files import atomic_write, write_json
from datamodules.episode_sampling import Counting
from datamodules.maker import missing, units
from datamodules.records import PAIR, pair_from_row, pair_to_row, read_rows, write_rows
from datamodules.tree.node import Tree
from datamodules.tree.pairs import candidate_groups, mixed_group
from datamodules.tree.tree_text import pair_text, tree_text
from datamodules.tree_search import read_trees
from envs.interfaces import Judge, Protocol
from envs.siblings import Candidate, Pair, Verdict

_SHOWN = 3  # pairs of each sort in the report


class Preferences:
    """A `Maker` of pairs: `data/pairs.jsonl` by tree and node, `data/preferences.json`, `report.md`.

    Trees are judged in units of `unit`, shared out over ranks and each written whole with what came of every group:
    a killed run goes on where it was, and no answer, not even an empty one, is asked for twice.

    Args:
        trees: the stage folder of a search.
        protocol: the format of its episodes.
        judge: compares steps.
        pairs_per_node: at most so many of a group of siblings' verdicts become pairs, the judge's best first.
        pairs_per_tree: besides, at most so many pairs of steps of one tree whatever their histories; not in the paper.
        unit: trees a unit.
        min_visits: visits that make a step a candidate; 0 for a judge that needs no outcome of it.
        descend_visits: visits of a step below which nothing is judged.

    Raises:
        ConfigError: a number is too low.
    """

    def __init__(
        self,
        trees: Path,
        protocol: Protocol,
        judge: Judge,
        *,
        pairs_per_node: int = 1,
        pairs_per_tree: int = 0,
        unit: int = 64,
        min_visits: int = 1,
        descend_visits: int = 3,
    ) -> None:
        counts = {"pairs_per_node": pairs_per_node, "pairs_per_tree": pairs_per_tree}
        visits = {"min_visits": min_visits, "descend_visits": descend_visits}
        if unit < 1 or not sum(counts.values()) or min(counts.values()) < 0 or min(visits.values()) < 0:
            given = ", ".join(f"{name} {value}" for name, value in ({"unit": unit} | counts | visits).items())
            raise ConfigError(f"{given}: unit and one of the numbers of pairs must be at least 1, none below 0")
        self.trees, self.protocol, self.judge = Path(trees), protocol, judge
        self.pairs_per_node, self.pairs_per_tree, self.unit = pairs_per_node, pairs_per_tree, unit
        self.min_visits, self.descend_visits = min_visits, descend_visits

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Judge this rank's units; those that are there already stay.

        Raises:
            DataError: there are no trees.
        """
        for path, trees in missing(self._units(folder), rank=rank, world_size=world_size):
            asked = [group for tree in trees for group in self._asked(tree, seed)]
            groups = [group for group, _ in asked]
            before = self._counted()
            answers = self.judge.compare(groups)
            pairs = [_pairs(group, answer, most) for (group, most), answer in zip(asked, answers, strict=True)]
            summary = {
                "trees": len(trees),
                "groups": len(groups),
                "nulls": sum(answer is not None and not answer for answer in answers),
                "failures": sum(answer is None for answer in answers),
                "counts": dict(sorted((self._counted() - before).items())),
            }
            write_json(path.with_suffix(".json"), summary)
            write_rows(path, (pair_to_row(pair) for group in pairs for pair in group))

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Join the units. Headline: pairs, their questions, how many groups gave none and why, and how often the
        chosen step has the higher search value where the two values differ.

        Raises:
            DataError: there is no pair.
        """
        paths = sorted((folder / "data" / "units").glob("*.jsonl"))
        pairs_path = folder / "data" / "pairs.jsonl"
        write_rows(pairs_path, (row for path in paths for row in read_rows(path, PAIR)))
        total: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for path in paths:
            summary = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            counts.update(summary.pop("counts"))
            total.update(summary)
        found = _Findings.of(pairs_path)
        if not found.pairs:
            raise DataError(
                f"no pairs: of {total['groups']} groups of steps the judge found {total['nulls']} alike and failed "
                f"on {total['failures']}; search more, or lower min_visits"
            )
        result = {**total, **found.figures(), "counts": dict(sorted(counts.items()))}
        write_json(folder / "data" / "preferences.json", result)
        with atomic_write(folder / "report.md") as file:
            file.write(_report(found, next(read_trees(self.trees))))
        return {name: float(value) for name, value in (result | counts).items() if isinstance(value, int | float)}

    def _asked(self, tree: Tree, seed: int) -> Iterator[tuple[list[Candidate], int]]:
        """The groups of a tree that the judge is asked about, and how many pairs each may give."""
        siblings = list(
            candidate_groups(tree, self.protocol, min_visits=self.min_visits, descend_visits=self.descend_visits)
        )
        if self.pairs_per_node:
            yield from ((group, self.pairs_per_node) for group in siblings)
        if self.pairs_per_tree and siblings:
            yield mixed_group(siblings, seed=seed), self.pairs_per_tree

    def _units(self, folder: Path) -> Iterator[tuple[Path, list[Tree]]]:
        """Where each unit goes, and its trees."""
        none = True
        for path, unit in units(folder / "data" / "units", read_trees(self.trees), self.unit):
            none = False
            yield path, unit
        if none:
            raise DataError(f"{self.trees}: no trees to judge")

    def _counted(self) -> Counter[str]:
        return Counter(self.judge.counts) if isinstance(self.judge, Counting) else Counter()


def _pairs(group: Sequence[Candidate], verdicts: Sequence[Verdict] | None, most: int) -> list[Pair]:
    pairs = []
    for verdict in (verdicts or ())[:most]:
        better, worse = group[verdict.chosen], group[verdict.rejected]
        values = (better.value, better.visits, worse.value, worse.visits)
        pairs.append(Pair(better.episode, worse.episode, *values, verdict.reason))
    return pairs


@dataclass(slots=True)
class _Findings:
    """What one pass over the pairs tells: counts, and the pairs that agree and disagree most with the search."""

    pairs: int = 0
    differing: int = 0
    agreeing: int = 0
    questions: int = 0
    best: list[Pair] = field(default_factory=list)
    worst: list[Pair] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path) -> _Findings:
        found, seen = cls(), set()
        for row in read_rows(path, PAIR):
            pair = pair_from_row(row)
            found.pairs += 1
            seen.add(pair.chosen.question.id)
            if not (pair.chosen_visits and pair.rejected_visits):
                continue  # of a step it never tried the search has no opinion
            found.differing += pair.chosen_value != pair.rejected_value
            found.agreeing += pair.chosen_value > pair.rejected_value
            found.best = sorted([*found.best, pair], key=_gap, reverse=True)[:_SHOWN]
            found.worst = sorted([*found.worst, pair], key=_gap)[:_SHOWN]
        found.questions = len(seen)
        return found

    def figures(self) -> dict[str, float | int | None]:
        agreement = self.agreeing / self.differing if self.differing else None
        return {"pairs": self.pairs, "questions": self.questions, "agreement": agreement}


def _gap(pair: Pair) -> float:
    return pair.chosen_value - pair.rejected_value


def _report(found: _Findings, tree: Tree) -> str:
    """The page that shows what the judge did."""
    agreement = f", of which {found.agreeing} of the {found.differing} with different values agree with the search"
    parts = ["# Preferences", f"{found.pairs} pairs on {found.questions} questions{agreement}."]
    parts.append("Q is a step's mean discounted outcome in the search, N how often it was visited.")
    for title, pairs in (("Most in line with the search", found.best), ("Most against it", found.worst)):
        parts += [f"## {title}", *(f"```\n{pair_text(pair)}\n```" for pair in pairs)]
    return "\n\n".join([*parts, "## One tree", f"```\n{tree_text(tree)}\n```"]) + "\n"
