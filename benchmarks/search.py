"""How many simulations a second a tree search makes: many trees at once, against one tree at a time.

    python -m benchmarks.search [--model models/SmolLM2-135M-Instruct] [--trees 16] [--simulations 8]

A simulation selects a node, samples its children, plays one of them out and backs up a value. Trees grow on questions
of the embedded world with turns of one length, observations of passages that BM25 found, children at temperature 0.9
and greedy playing out. All ways search with the same questions, weights and budget of simulations, alternating in one
process. Where `parallel` is more than 1, `many trees` selects before the values of a round are known, so its trees are
others; `expansions` says how many nodes each way gave children, which costs more than a selection that ends at a leaf.

- `many trees`: all trees advance together, `parallel` selections of each, as in a search stage; a prefix is read once.
- `one tree`: the same search and sampler, a tree after the other, one selection at a time.
- `one tree, generate`: that with `model.generate`, which reads the whole context in every turn.

`ratio` is simulations a second of `many trees` over those of the way: above 1, `many trees` is faster.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.equal_turns import equal_turns
from benchmarks.measures import alternating
from benchmarks.peers import add_options, make_world, settings_of, work_of
from benchmarks.report import report
from benchmarks.resending import LibraryGenerate
from benchmarks.rollout_way import policy_of, world_questions
from datamodules.tree.node import Tree
from datamodules.tree.search import SearchSettings, TreeSearcher
from datamodules.tree.selection import AllAtOnce
from envs.interfaces import Sampler
from envs.retrieval import RetrievalEnvironment
from envs.sampling import AtTemperature
from envs.types import Question
from modules.samplers.in_process import InProcessSampler

OURS = "many trees"
PACKAGES = ("torch", "transformers", "bm25s")


class Search:
    """One way of searching; `trees` are those that it grew last.

    Args:
        environment: with the retriever.
        sampler: for children and for playing out.
        settings: of the search.
        together: whether all trees grow at once.
    """

    def __init__(
        self, environment: RetrievalEnvironment, sampler: Sampler, settings: SearchSettings, *, together: bool
    ) -> None:
        expander, simulator = AtTemperature(sampler, temperature=0.9), AtTemperature(sampler)
        self._searcher = TreeSearcher(environment, expander, simulator, settings, seed=0)
        self._together = together
        self.trees: list[Tree] = []

    def __call__(self, questions: Sequence[Question]) -> None:
        """Grow a tree a question."""
        parts = [questions] if self._together else [[question] for question in questions]
        self.trees = [tree for part in parts for tree in self._searcher.grow(part)]

    def simulations(self) -> int:
        """Values that were backed up in the last search."""
        return sum(tree.counts["simulations"] + tree.counts["terminal"] for tree in self.trees)

    def expansions(self) -> int:
        """Nodes that were given children in the last search."""
        return sum(tree.counts["expansions"] for tree in self.trees)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.set_defaults(turns=4, turn_tokens=24, observation=80)
    parser.add_argument("--trees", type=int, default=16, help="one a question; takes the place of --questions")
    parser.add_argument("--simulations", type=int, default=8, help="selections a tree")
    parser.add_argument("--children", type=int, default=3, help="sampled at a node")
    parser.add_argument("--parallel", type=int, default=3, help="selections of a tree at once, of `many trees`")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt")
    options = parser.parse_args(arguments)
    work = work_of(options, options.prompt)
    with tempfile.TemporaryDirectory() as name:
        world = Path(name)
        make_world(world, options.trees)
        given = settings_of(options, world)
        policy = policy_of(given)
        environment = equal_turns(given["model"], work, world / "data" / "corpus.jsonl")
        questions = world_questions(name)[: options.trees]
        one = SearchSettings(options.simulations, width=AllAtOnce(options.children))
        many = replace(one, parallel=options.parallel, pool=options.trees * options.parallel)
        rows_at_once = max(64, options.trees * options.parallel * options.children)
        ours, peer = InProcessSampler(policy, batch_size=rows_at_once), LibraryGenerate(policy, 0.0)
        searches = {
            OURS: Search(environment, ours, many, together=True),
            "one tree": Search(environment, ours, one, together=False),
            "one tree, generate": Search(environment, peer, one, together=False),
        }
        ways = {name: lambda search=search: search(questions) for name, search in searches.items()}
        times = alternating(ways, options.repeats)
    rows: list[dict[str, Any]] = []
    for name, search in searches.items():
        per_s = search.simulations() / times[name]["seconds"]
        done = {"simulations": search.simulations(), "expansions": search.expansions()}
        rows.append({"way": name, **done, **times[name], "simulations_per_s": per_s})
    for row in rows:
        row["ratio"] = round(rows[0]["simulations_per_s"] / row["simulations_per_s"], 2)
    settings = {name: str(value) for name, value in vars(options).items()}
    report(rows, packages=PACKAGES, json_file=options.json, settings=settings)


if __name__ == "__main__":
    main()
