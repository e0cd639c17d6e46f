"""Preferences as a stage: a judge compares steps of the search trees, and its verdicts become pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.costs import JUDGED_STEPS, counted
from common.errors import ConfigError, DataError
from common.files import atomic_write, write_json
from datamodules.record_stage import join_units, missing, summed, write_counts
from datamodules.records import PAIR, pair_from_row, pair_to_row, read_rows, write_rows
from datamodules.tree.node import Tree
from datamodules.tree.step_groups import candidate_groups, mixed_group
from datamodules.tree.tree_text import pair_text, tree_text
from datamodules.tree_search import read_trees, tree_units
from envs.interfaces import AgentFormat, Judge
from envs.pairs import Candidate, Pair, Verdict

_SHOWN = 3  # pairs of each sort in the report


class Preferences:
    """Record stage of pairs: `data/pairs.jsonl` by tree and node, `data/preferences.json`, `report.md`.

    Trees are judged in units of `unit`, shared out over ranks. A unit is written complete, with its counts, so a killed
    run continues with the first missing unit and no group of a written unit is judged again.

    Args:
        trees: the stage folder of a search.
        protocol: the format of its episodes.
        judge: compares steps.
        pairs_per_node: most pairs of a group of siblings, the judge's best verdicts first.
        pairs_per_tree: most further pairs of a tree, of steps with any histories; not in the paper.
        unit: trees a unit.
        min_visits: visits that make a step a candidate; 0 for a judge that needs no search value.
        descend_visits: visits of a node whose children are compared.

    Raises:
        ConfigError: a number is too low.
    """

    def __init__(
        self,
        trees: Path,
        protocol: AgentFormat,
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
            settings = ", ".join(f"{name} {value}" for name, value in ({"unit": unit} | counts | visits).items())
            raise ConfigError(f"{settings}: unit must be >= 1, the others >= 0, one number of pairs above 0")
        self.trees, self.protocol, self.judge = Path(trees), protocol, judge
        self.pairs_per_node, self.pairs_per_tree, self.unit = pairs_per_node, pairs_per_tree, unit
        self.min_visits, self.descend_visits = min_visits, descend_visits

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Judge this rank's units that are not written yet.

        Raises:
            DataError: there are no trees.
        """
        units = tree_units(folder, self.trees, self.protocol, self.unit)
        for path, trees in missing(units, rank=rank, world_size=world_size):
            limited = [group for tree in trees for group in self._groups(tree, seed)]
            groups = [group for group, _ in limited]
            before = counted(self.judge)
            answers = self.judge.compare(groups)
            seen = set[tuple[int, int]]()
            pairs = [_pairs(group, answer, most, seen) for (group, most), answer in zip(limited, answers, strict=True)]
            summary = {
                "trees": len(trees),
                "groups": len(groups),
                "nulls": sum(answer is not None and not answer for answer in answers),
                "failures": sum(answer is None for answer in answers),
            }
            judged = {id(candidate.episode.turns[-1]) for group in groups for candidate in group}  # in several groups
            write_counts(path, counted(self.judge) - before + Counter({JUDGED_STEPS: len(judged)}), **summary)
            write_rows(path, (pair_to_row(pair) for group in pairs for pair in group))

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Join the units.

        Headline: pairs and their questions; groups, and those without a verdict (`nulls`) or whose call failed; and
        `agreement`, how often the chosen step has the higher search value where the two values differ.

        Raises:
            DataError: there is no pair.
        """
        counts, total = summed(join_units(folder, "pairs.jsonl", PAIR))
        findings = _Findings.of(folder / "data" / "pairs.jsonl")
        if not findings.pairs:
            raise DataError(
                f"no pairs: of {total['groups']} groups of steps the judge found {total['nulls']} alike and failed "
                f"on {total['failures']}; search more, or lower min_visits"
            )
        result = {**total, **findings.figures(), "counts": dict(sorted(counts.items()))}
        write_json(folder / "data" / "preferences.json", result)
        with atomic_write(folder / "report.md") as file:
            file.write(_report(findings, next(read_trees(self.trees))))
        return {name: float(value) for name, value in (result | counts).items() if isinstance(value, int | float)}

    def _groups(self, tree: Tree, seed: int) -> Iterator[tuple[list[Candidate], int]]:
        """The groups of a tree that the judge compares, and the most pairs that each may give."""
        siblings = list(
            candidate_groups(tree, self.protocol, min_visits=self.min_visits, descend_visits=self.descend_visits)
        )
        if self.pairs_per_node:
            yield from ((group, self.pairs_per_node) for group in siblings)
        if self.pairs_per_tree and siblings:
            yield mixed_group(siblings, seed=seed), self.pairs_per_tree


def _pairs(
    group: Sequence[Candidate], verdicts: Sequence[Verdict] | None, most: int, seen: set[tuple[int, int]]
) -> list[Pair]:
    """The first pairs of a group that are not `seen`: siblings may recur among the steps of their tree."""
    pairs = []
    for verdict in verdicts or ():
        better, worse = group[verdict.chosen], group[verdict.rejected]
        turns = id(better.episode.turns[-1]), id(worse.episode.turns[-1])
        if len(pairs) == most or turns in seen:
            continue
        seen.add(turns)
        values = (better.value, better.visits, worse.value, worse.visits)
        pairs.append(Pair(better.episode, worse.episode, *values, verdict.reason))
    return pairs


@dataclass(slots=True)
class _Findings:
    """Counts over all pairs, and the pairs that agree and disagree most with the search values."""

    pairs: int = 0
    differing: int = 0
    agreeing: int = 0
    questions: int = 0
    best: list[Pair] = field(default_factory=list)
    worst: list[Pair] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path) -> _Findings:
        findings, seen = cls(), set()
        for row in read_rows(path, PAIR):
            pair = pair_from_row(row)
            findings.pairs += 1
            seen.add(pair.chosen.question.id)
            if not (pair.chosen_visits and pair.rejected_visits):
                continue  # a step that was never visited has no search value
            findings.differing += pair.chosen_value != pair.rejected_value
            findings.agreeing += pair.chosen_value > pair.rejected_value
            findings.best = sorted([*findings.best, pair], key=_gap, reverse=True)[:_SHOWN]
            findings.worst = sorted([*findings.worst, pair], key=_gap)[:_SHOWN]
        findings.questions = len(seen)
        return findings

    def figures(self) -> dict[str, float | int | None]:
        agreement = self.agreeing / self.differing if self.differing else None
        return {"pairs": self.pairs, "questions": self.questions, "agreement": agreement}


def _gap(pair: Pair) -> float:
    return pair.chosen_value - pair.rejected_value


def _report(findings: _Findings, tree: Tree) -> str:
    """The report: counts, pairs for and against the search values, and a tree."""
    agreement = (
        f", of which {findings.agreeing} of the {findings.differing} with different values agree with the search"
    )
    parts = ["# Preferences", f"{findings.pairs} pairs on {findings.questions} questions{agreement}."]
    parts.append("Q is a step's mean discounted outcome in the search, N how often it was visited.")
    for title, pairs in (("Most in line with the search", findings.best), ("Most against it", findings.worst)):
        parts += [f"## {title}", *(f"```\n{pair_text(pair)}\n```" for pair in pairs)]
    return "\n\n".join([*parts, "## One tree", f"```\n{tree_text(tree)}\n```"]) + "\n"
