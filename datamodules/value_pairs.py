"""Preferences from the values of search trees: of two siblings, the one that leads to better answers sooner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from common.errors import ConfigError, DataError
from common.files import atomic_write, write_json
from datamodules.pair_statistics import PairStatistics
from datamodules.record_stage import join_units, missing, summed, write_counts
from datamodules.records import PAIR, pair_from_row, pair_to_row, read_rows, write_rows
from datamodules.tree.labels import Labels, rollouts
from datamodules.tree.node import Node, Tree
from datamodules.tree.tree_text import pair_text, tree_text
from datamodules.tree_search import read_trees, tree_units
from envs.interfaces import AgentFormat
from envs.pairs import Candidate, Pair


class ValuePairs:
    """Record stage of pairs: `data/pairs.jsonl` by tree and node, `data/preferences.json`, `report.md`.

    Every two children of a node make a pair if their labels differ, they ask for different things, and the better one
    follows the format; the worse one need not. A row holds the tree's own turns, with the context each was sampled in
    and its sampled ids: nothing is encoded again. Source: ReasonRAG (arXiv 2505.14069), RAG-ProGuide.

    Trees are compared in units of `unit`, shared out over ranks; a killed run resumes at the first missing unit.

    Args:
        trees: the stage folder of a search.
        protocol: the format of its episodes.
        labels: what a step is worth, `datamodules.tree.labels:rollouts` (the paper) or `tree_backup` (its code).
        min_gap: least difference of two labels.
        unit: trees a unit.

    Raises:
        ConfigError: a setting is out of range.
    """

    def __init__(
        self, trees: Path, protocol: AgentFormat, *, labels: Labels = rollouts, min_gap: float = 0.01, unit: int = 64
    ) -> None:
        if unit < 1 or not 0 < min_gap <= 1:
            raise ConfigError(f"unit {unit}, min_gap {min_gap}: unit must be at least 1, min_gap in (0, 1]")
        self.trees, self.protocol, self.labels = Path(trees), protocol, labels
        self.min_gap, self.unit = min_gap, unit

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Compare the siblings of this rank's units that are not written yet.

        Raises:
            DataError: there are no trees, or the labels cannot be read from them.
        """
        units = tree_units(folder, self.trees, self.protocol, self.unit)
        for path, trees in missing(units, rank=rank, world_size=world_size):
            found: Counter[str] = Counter({"trees": len(trees)})
            pairs = [pair for tree in trees for pair in self._pairs(tree, found)]
            write_counts(path, {}, **dict(sorted(found.items())))
            write_rows(path, map(pair_to_row, pairs))

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Join the units; returns the statistics of the pairs, and why other siblings made none (`siblings/<why>`).

        Raises:
            DataError: there is no pair.
        """
        _, found = summed(join_units(folder, "pairs.jsonl", PAIR))
        trees = found.pop("trees")
        target = folder / "data" / "pairs.jsonl"
        statistics = PairStatistics.of(map(pair_from_row, read_rows(target, PAIR)))
        why = {name: found[name] for name in _REASONS}
        if not statistics.tokens:
            counted = ", ".join(f"{count} {_REASONS[name]}" for name, count in why.items())
            raise DataError(
                f"{self.trees}: no pair in {trees} trees; of two siblings there were {counted}. Search longer, sample "
                "hotter, or train the policy until some of its answers are right"
            )
        figures = statistics.figures() | {"trees": float(trees), "questions": float(len(statistics.questions))}
        figures |= {f"siblings/{name}": float(count) for name, count in why.items()}
        write_json(folder / "data" / "preferences.json", figures)
        with atomic_write(folder / "report.md") as file:
            file.write(self._report(target, statistics))
        return figures

    def _pairs(self, tree: Tree, found: Counter[str]) -> Iterator[Pair]:
        """The pairs of a tree, node by node; counts in `found` why other siblings make none."""
        labels = self.labels(tree, self.protocol)
        for path in tree.paths():
            known = [child for child in path[-1].children if id(child) in labels and _trains(child)]
            candidates = [self._candidate(tree, (*path, child), labels[id(child)]) for child in known]
            for better, worse in combinations(sorted(candidates, key=lambda one: -one.value), 2):
                why = self._against(better, worse)
                if why is not None:
                    found[why] += 1
                    continue
                reason = f"label {better.value:.3g} against {worse.value:.3g}"
                values = (better.value, better.visits, worse.value, worse.visits)
                yield Pair(better.episode, worse.episode, *values, reason)

    def _candidate(self, tree: Tree, path: tuple[Node, ...], label: float) -> Candidate:
        """The episode that ends in a node, read by the protocol, with the node's label as its value."""
        episode = tree.episode(path)
        episode.steps, episode.answer = self.protocol.steps(episode), self.protocol.answer(episode)
        return Candidate(episode, label, path[-1].visits)

    def _against(self, better: Candidate, worse: Candidate) -> str | None:
        """Why two siblings make no pair; None where they do."""
        if round(better.value - worse.value, 9) < self.min_gap:  # labels have nine digits, their difference may not
            return "close"
        if _asked(better) == _asked(worse):
            return "same"
        written = better.written()
        return None if written and all(step.valid for step in written) else "malformed"

    def _report(self, path: Path, statistics: PairStatistics) -> str:
        """The statistics, a pair of each kind, and a tree."""
        shown: dict[str, Pair] = {}
        for row in read_rows(path, PAIR):
            pair = pair_from_row(row)
            shown.setdefault(
                " against ".join(side.turns[-1].action.kind for side in (pair.chosen, pair.rejected)), pair
            )
        summary = f"{len(statistics.tokens)} pairs on {len(statistics.questions)} questions; {statistics.crossing} of"
        parts = ["# Preferences", f"{summary} them compare turns of different kinds.", statistics.table()]
        for kinds, pair in sorted(shown.items()):
            parts += [f"## {kinds}", f"```\n{pair_text(pair)}\n```"]
        return "\n\n".join([*parts, "## One tree", f"```\n{tree_text(next(read_trees(self.trees)))}\n```"]) + "\n"


_REASONS = {
    "close": "with labels too close",
    "same": "that ask for the same",
    "malformed": "of which the better is out of format",
}


def _trains(node: Node) -> bool:
    """Whether a node's turn is one that trains: a frozen generator's never is."""
    return node.turn is not None and node.turn.trainable


def _asked(candidate: Candidate) -> tuple[str, str]:
    """What the last turn asks for, whatever its case and spacing."""
    action = candidate.episode.turns[-1].action
    return action.kind, " ".join(action.text.casefold().split())
