"""Monte Carlo tree search (MCTS) as a stage: trees of the policy's steps, valued by the answers they lead to."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from common.costs import counted
from common.errors import ConfigError, DataError, RetrievalError
from common.files import atomic_write, write_json
from common.progress import progress_bar
from datamodules.record_stage import affordable, join_units, unit_counts, units, write_counts
from datamodules.records import (
    EPISODE,
    TREE,
    episode_to_row,
    numbered_rows,
    read_rows,
    rows_in,
    tree_from_row,
    tree_to_row,
    write_rows,
)
from datamodules.sources import Source
from datamodules.tree.node import Tree
from datamodules.tree.puct import Prior
from datamodules.tree.search import SearchSettings, TreeSearcher
from datamodules.tree.selection import AllAtOnce, Puct, Selection, Width
from datamodules.tree.tree_text import tree_text
from datamodules.tree.values import AnswerScore, Backup, DiscountedMean, LeafValue
from envs.interfaces import AgentFormat, Sampler
from envs.retrieval import RetrievalEnvironment
from envs.token_ids import require_ids_of
from envs.types import Question


class TreeSearch:
    """Search trees: `data/trees.jsonl` in the order of the questions, `data/search.json`, `report.md`.

    The trees of a chunk grow together and are written together; chunks are shared out over ranks. A killed search
    continues with the first chunk that is missing. The trees do not depend on the number of ranks; with `max_tokens`
    how many there are does. The default rules are ProRAG's (arXiv 2601.21912), with fewer simulations and children;
    ReasonRAG's are `Uct`, `OneAtATime`, `SPRE` and `JudgedValue`.

    Args:
        questions: what to search on.
        environment: where episodes are played; its limit of turns is `depth`.
        expander: samples the children of a node (the paper: at a high temperature; 0.9 with top-p 0.95).
        simulator: plays episodes out (greedily); None takes the expander.
        simulations: selections a tree, each of which backs up one value.
        selection: scores the children of a node; default `datamodules.tree.selection.Puct`.
        width: how many children a node gets, and when; default `datamodules.tree.selection.AllAtOnce`.
        leaf_value: values leaves and ends of episodes; default `datamodules.tree.values.AnswerScore`.
        backup: what a value changes on its path; default `datamodules.tree.values.DiscountedMean`.
        prior: a child's probability among its siblings, see `datamodules.tree.puct.priors`.
        depth: steps after which an episode is over; replaces `limits.turns`.
        parallel: selections a tree a round, kept apart by virtual losses.
        chunk: trees a unit of work; larger chunks fill batches better.
        pool: episodes in flight when playing out.
        keep_rollouts: also write what was played out, `data/episodes.jsonl`, in the order of the trees, so that these
            steps can be judged: they end in answers, which few nodes of a shallow tree do.
        max_tokens: ends the search, after whole chunks: every rank stops once its samplers, expander and simulator,
            have sampled its equal share of them.

    Raises:
        ConfigError: a setting is out of range.
    """

    role = "search"

    def __init__(
        self,
        questions: Source,
        environment: RetrievalEnvironment,
        expander: Sampler,
        *,
        simulator: Sampler | None = None,
        simulations: int = 32,
        selection: Selection | None = None,
        width: Width | None = None,
        leaf_value: LeafValue | None = None,
        backup: Backup | None = None,
        prior: Prior = "logp_mean",
        depth: int = 10,
        parallel: int = 1,
        chunk: int = 64,
        pool: int = 64,
        keep_rollouts: bool = False,
        max_tokens: int | None = None,
    ) -> None:
        counts = {"simulations": simulations, "depth": depth, "parallel": parallel}
        for name, count in (counts | {"chunk": chunk, "pool": pool, "max_tokens": max_tokens or 1}).items():
            if count < 1:
                raise ConfigError(f"{name} is {count}; it must be at least 1")
        self.questions, self.chunk, self.max_tokens = questions, chunk, max_tokens
        self.keep_rollouts = keep_rollouts
        self.environment = environment.variant(limits=dataclasses.replace(environment.limits, turns=depth))
        self.expander, self.simulator = expander, simulator or expander
        self.environment.check(self.expander, self.simulator)
        self.settings = SearchSettings(
            simulations,
            selection or Puct(),
            width or AllAtOnce(),
            leaf_value or AnswerScore(),
            backup or DiscountedMean(),
            prior,
            parallel,
            pool,
        )

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Grow this rank's chunks that are not written yet.

        Raises:
            DataError: there are no questions.
            RetrievalError: every first retrieval of a chunk failed, or the retriever failed too often in a row.
        """
        searcher = TreeSearcher(self.environment, self.expander, self.simulator, self.settings, seed=seed)
        share = {"rank": rank, "world_size": world_size, "max_tokens": self.max_tokens}
        counting = self.expander, self.simulator, self.environment, self.settings.leaf_value
        for path, questions in affordable(self._chunks(folder), **share):
            before = counted(*counting)
            total = len(questions) * self.settings.simulations
            with progress_bar(total, "simulations", unit="sim") as bar:
                trees = searcher.grow(questions, bar.update)
            if all(tree.counts["failures"] and not tree.root.children for tree in trees):
                raise RetrievalError(f"every retrieval failed for all {len(trees)} trees of {path.stem}: run again")
            if self.keep_rollouts:
                write_rows(_played(path), map(episode_to_row, searcher.played))
            write_counts(path, counted(*counting) - before)
            write_rows(path, map(tree_to_row, trees))

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Join the chunks; returns `search/*`: counts, and means over trees; and the tokens that were sampled."""
        paths = join_units(folder, "trees.jsonl", TREE)
        if self.keep_rollouts:
            rows = (row for path in paths for row in read_rows(_played(path), EPISODE))
            write_rows(folder / "data" / "episodes.jsonl", rows)
        sums: dict[str, float] = {}
        shown: Tree | None = None
        for tree in read_trees(folder):
            for name, count in _summary(tree).items():
                sums[name] = sums.get(name, 0) + count
            # The report shows the tree whose outcomes differ most.
            if shown is None or abs(tree.root.value - 0.5) < abs(shown.root.value - 0.5):
                shown = tree
        assert shown is not None
        for name in ("depth", "value", "success"):
            sums[name] /= sums["trees"]
        write_json(folder / "data" / "search.json", {"role": self.role, **sums})
        with atomic_write(folder / "report.md") as file:
            file.write(f"# Search\n\n{_TREE}\n\n```\n{tree_text(shown)}\n```\n")
        headline = {f"search/{name}": float(value) for name, value in sums.items()}
        return headline | dict(sum(map(unit_counts, paths), Counter()))

    def _chunks(self, folder: Path) -> Iterable[tuple[Path, list[Question]]]:
        questions = list(self.questions)
        if not questions:
            raise DataError("no questions to search on")
        return units(folder / "data" / "units", questions, self.chunk)


def _played(unit: Path) -> Path:
    """The file of the rollouts of a unit of trees."""
    return unit.parent.with_name("played") / unit.name


_TREE = "One tree: N visits, Q mean backed-up value, P prior; in brackets how an episode ended, and its value."


def read_trees(folder: Path, protocol: AgentFormat | None = None) -> Iterator[Tree]:
    """Stream the trees of a search's stage folder, for a protocol to read.

    Raises:
        DataError: the file is missing, a row is malformed, or its ids are not those of the protocol's tokenizer.
    """
    for where, row in numbered_rows(Path(folder) / "data" / "trees.jsonl"):
        tree = tree_from_row(row, where)
        if protocol is not None:
            require_ids_of(protocol.codec.tokenizer, tree.tokenizer, where)
        yield tree


def tree_units(folder: Path, search: Path, protocol: AgentFormat, size: int) -> Iterable[tuple[Path, list[Tree]]]:
    """The trees of a search's stage folder as units of work, each with its file in the stage folder `folder`.

    Raises:
        DataError: there is no tree; and as `read_trees`.
    """
    count = rows_in(Path(search) / "data" / "trees.jsonl")
    return units(folder / "data" / "units", _some(read_trees(search, protocol), search), size, count=count)


def _some(trees: Iterator[Tree], search: Path) -> Iterator[Tree]:
    tree = None
    for tree in trees:
        yield tree
    if tree is None:
        raise DataError(f"{search}: no trees to compare steps of")


def _summary(tree: Tree) -> dict[str, float]:
    depths = [len(path) - 1 for path in tree.paths()]
    return {
        "trees": 1,
        **tree.counts,
        "nodes": len(depths) - 1,
        "depth": max(depths),
        "value": tree.root.value,
        "success": float(tree.root.value > 0),
    }
