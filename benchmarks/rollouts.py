"""How fast multi-turn episodes are sampled, by context length: the suite's two samplers beside two peers.

    python -m benchmarks.rollouts [--model models/SmolLM2-135M-Instruct] [--prompts 64 512] [--ways "in process" trl]

Every way samples the same episodes: `questions` of the embedded world with a `group` each, whose turns sample
`turn-tokens` and then read an observation of passages that BM25 found for the question. With `--mixed` lengths differ,
as an agent's do.

- `in process`: the suite's own sampler, which keeps what it read of an episode and goes on with each by itself.
- `vllm`: the suite's sampler behind vLLM, where `make engine` installed it.
- `trl`: the generation of TRL's GRPOTrainer with its transformers backend (`make peers`), which is sent the whole
  context in each turn.
- `trl, paged`: the same with its other backend, transformers' continuous batching.
- `generate`: the same with nothing around `model.generate`.

Each runs alone in a process of its own, all take turns on one machine; figures are medians of the turns after the
first. Before that every way continues the first work greedily: `agreement` is the share of turns whose tokens are those
of `in process`, which shows that both compute with the same weights on the same contexts (ties, and rounding in
bfloat16, part them); a peer that cannot be run is left out with its reason. `context` is the tokens of the longest
episode. `ratio` is tokens a second of `in process` over those of the way: above 1, `in process` is faster.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.equal_turns import Work
from benchmarks.peers import PEERS, add_options, installed, make_world, settings_of, without, work_of
from benchmarks.report import report
from benchmarks.ways import Message, Way, WayFailed, all_open, alternate

OURS = "in process"
CHOICES = (OURS, "vllm", "trl", "trl, paged", "generate")
PACKAGES = ("torch", "transformers", "bm25s")


def opened(names: Sequence[str], settings: Message, context: int, work: Message) -> list[Way]:
    """The ways of these names that are installed, each in its process."""
    known, ways = installed(), []
    settings = {**settings, "context": context}
    for name in names:
        needs, command = {"v": ("vllm", "make engine"), "t": ("trl", "make peers")}.get(name[0], ("", ""))
        if needs and needs not in known:
            without(needs, command)
        elif needs == "trl":
            more = {"train": False, "continuous": name == "trl, paged", "work": work}
            ways.append(Way(name, "benchmarks.trl_way", settings | more, PEERS))
        else:
            ways.append(Way(name, "benchmarks.rollout_way", settings | {"way": name}))
    return ways


def agreement(ours: Sequence[Sequence[Any]], other: Sequence[Sequence[Any]]) -> float:
    """The share of turns, `[episode][turn]`, whose ids are the same on both sides."""
    pairs = [pair for one, two in zip(ours, other, strict=True) for pair in zip(one, two, strict=True)]
    return sum(one == two for one, two in pairs) / len(pairs)


def proved(ways: Mapping[str, Way], work: Work) -> tuple[dict[str, float], dict[str, str]]:
    """The agreement of each way with ours on greedy tokens, and why a peer could not be run.

    Raises:
        WayFailed: ours could not.
    """
    ask = {"work": asdict(work), "greedy": True}
    ours = ways[OURS].take(ask)["ids"]
    agree, failed = {OURS: 1.0}, {}
    for name in (name for name in ways if name != OURS):
        try:
            agree[name] = agreement(ours, ways[name].take(ask)["ids"])
        except WayFailed as error:
            failed[name] = str(error)
            print(f"left out: {error}", file=sys.stderr)
    return agree, failed


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--prompts", type=int, nargs="+", default=[64, 512], help="tokens of the prompt, a table each")
    parser.add_argument("--ways", nargs="+", choices=CHOICES, default=list(CHOICES))
    options = parser.parse_args(arguments)
    works = [work_of(options, prompt) for prompt in options.prompts]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as world:
        make_world(Path(world), max(40, options.questions))
        settings = settings_of(options, Path(world), rows=works[0].episodes)
        names = [OURS, *(name for name in options.ways if name != OURS)]
        context = max(work.context for work in works)
        with all_open(opened(names, settings, context, asdict(works[0]))) as ways:
            agree, failed = proved(ways, works[0])
            ways = {name: ways[name] for name in agree}
            for work in works:
                measured = alternate(ways, {"work": asdict(work), "greedy": False}, options.repeats)
                rows += [_row(name, work.context, agree[name], figures) for name, figures in measured.items()]
    for row in rows:
        [ours] = [one for one in rows if one["way"] == OURS and one["context"] == row["context"]]
        row["ratio"] = round(ours["tokens_per_s"] / row["tokens_per_s"], 2)
    settings = {name: str(value) for name, value in vars(options).items()}
    report(rows, packages=PACKAGES, json_file=options.json, peers=installed(), failed=failed, settings=settings)


def _row(name: str, context: int, agree: float, figures: Message) -> dict[str, Any]:
    if name == "vllm":
        figures = {key: value for key, value in figures.items() if key != "cpu_seconds"}  # the server's are not in it
    speed = {"tokens_per_s": figures["tokens"] / figures["seconds"], "agreement": agree}
    return {"way": name, "context": context} | figures | speed


if __name__ == "__main__":
    main()
