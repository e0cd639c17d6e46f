"""What a whole iteration of reinforcement learning takes: rollout, scoring and update, beside TRL's GRPOTrainer.

    python -m benchmarks.rl_step [--model models/SmolLM2-135M-Instruct] [--no-reward-model]

Both train the same weights on the same set of questions with the same rewards, computed by the same code: the share of
different tokens, and the mean score that a reward model of the policy's size gives the steps. An iteration is one
update by the clipped loss of group-normalised advantages, without a reference, on episodes as `benchmarks.rollouts`
has them: all of one length, which spares TRL the padding of mixed ones, or mixed (`--mixed`). `suite` is a run's own
iteration: rollout callback, in-process sampler, GRPO, Trainer. `trl` samples by a `rollout_func` that sends the whole
context each turn.

Each runs in a process of its own, both take turns; figures are medians of the iterations after the first. `update_s` is
all but rollout and scoring. `ratio` is seconds of the way over those of `suite`: above 1, `suite` is faster.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers import PEERS, add_options, installed, make_world, settings_of, without, work_of
from benchmarks.report import report
from benchmarks.ways import Way, all_open, alternate

OURS = "suite"
PACKAGES = ("torch", "transformers", "lightning", "bm25s")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--micro-batch", type=int, default=8, help="episodes of a backward pass, of both")
    parser.add_argument("--no-reward-model", action="store_true", help="reward different tokens alone")
    options = parser.parse_args(arguments)
    work, known = work_of(options, options.prompt), installed()
    if work.episodes % options.micro_batch:
        parser.error(f"--micro-batch {options.micro_batch} does not divide {work.episodes} episodes evenly")
    with tempfile.TemporaryDirectory() as world:
        make_world(Path(world), max(40, options.questions * (options.repeats + 2)))
        more = {"work": asdict(work), "micro_batch": options.micro_batch, "reward_model": not options.no_reward_model}
        settings = settings_of(options, Path(world), rows=work.episodes, train=True, **more)
        ways = [Way(OURS, "benchmarks.grpo_way", settings)]
        if "trl" in known:
            ways.append(Way("trl", "benchmarks.trl_way", settings, PEERS))
        else:
            without("trl", "make peers")
        with all_open(ways) as opened:
            measured = alternate(opened, {}, options.repeats)
    rows = [{"way": name, "episodes": work.episodes, "context": work.context} | row for name, row in measured.items()]
    for row in rows:
        row["ratio"] = round(row["seconds"] / measured[OURS]["seconds"], 2)
    settings = {name: str(value) for name, value in vars(options).items()}
    report(rows, packages=PACKAGES, json_file=options.json, peers=known, settings=settings)


if __name__ == "__main__":
    main()
