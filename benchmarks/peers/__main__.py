"""Iterations of GRPO against TRL's GRPOTrainer: tokens a second of sampling, seconds of the update and of all.

    python -m benchmarks.peers [--model models/SmolLM2-135M-Instruct] [--turns 5 --mixed] [--sides suite TRL]

All sides train the same weights on the same questions; an iteration is one update of AdamW by the clipped loss of
group-normalised advantages, without a reference, on episodes of the same turns and observations (`equal_turns.py`):
`--turns` of `--turn-tokens` sampled tokens, an `--observation` after each; `--mixed` of 1 to so many turns, of a third
up to all of their tokens. The reward is the share of different tokens. `suite` is a run's own iteration with the
in-process sampler; `suite, vLLM` samples through vLLM (`make engine`); `TRL` (`make peers`) samples by a `rollout_func`
that sends the whole context in each turn, as released code of agents does.

Each side runs in a process of its own, `--rounds` times in turn. Its first iteration does not count and is greedy:
`agreement` is the share of its turns whose tokens are those of `suite`, which shows that all compute with the same
weights on the same contexts. Figures are medians of the `--repeats` others; ratios above 1 say that `suite` is faster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from benchmarks.equal_turns import WORLD_BASE, Work
from benchmarks.report import ROOT, medians, read_options, report
from common.errors import UserError
from modules.samplers.vllm.command import installed_version
from modules.samplers.vllm.engine import ENGINE_PYTHON

OURS, VLLM, TRL = "suite", "suite, vLLM", "TRL"
MODULES = {OURS: "benchmarks.peers.suite_side", VLLM: "benchmarks.peers.suite_side", TRL: "benchmarks.peers.trl_side"}
PEERS = ROOT / ".peers"

Figures = dict[str, Any]  # of a process: `ids` of the greedy iteration, `moved`, and `iterations` that count


def installed() -> dict[str, str]:
    """Versions of the peers that are there, by side."""
    found = {VLLM: installed_version(ENGINE_PYTHON)} if ENGINE_PYTHON.exists() else {}
    trl = [one.version for one in distributions(path=[str(PEERS)]) if one.name == "trl"]
    return found | ({TRL: trl[0]} if trl else {})


def run(side: str, settings: Mapping[str, Any]) -> Figures:
    """Figures of a side, from a process of its own.

    Raises:
        UserError: the process failed; has its last line.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        path = os.pathsep.join([str(PEERS), str(ROOT)] if side == TRL else [str(ROOT)])
        done = subprocess.run(
            [sys.executable, "-m", MODULES[side], json.dumps({**settings, "side": side}), str(out)],
            env=os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["without a word"])[-1]
            raise UserError(f"{side} ended with {done.returncode}: {last}; leave it out of --sides")
        return json.loads(out.read_text())


def agreement(ours: Mapping[str, Sequence[Any]], other: Mapping[str, Sequence[Any]]) -> float:
    """The share of turns, by episode, whose ids are the same on both sides."""
    assert ours.keys() == other.keys(), "both sides have the same questions"
    pairs = [pair for name in ours for pair in zip(ours[name], other[name], strict=True)]
    return sum(one == two for one, two in pairs) / len(pairs)


def rows_of(runs: Mapping[str, Sequence[Figures]]) -> list[dict[str, Any]]:
    """A row for each side from its rounds; `suite` is the first."""
    rows: list[dict[str, Any]] = []
    for side, rounds in runs.items():
        figures = medians([iteration for one in rounds for iteration in one["iterations"]])
        speed = {"tokens_per_s": figures["tokens"] / figures["rollout_s"], "moved": rounds[0]["moved"]}
        rows.append({"side": side} | figures | speed | {"agreement": agreement(runs[OURS][0]["ids"], rounds[0]["ids"])})
    for row in rows:
        row["sampling_ratio"] = round(rows[0]["tokens_per_s"] / row["tokens_per_s"], 2)
        row["ratio"] = round(row["seconds"] / rows[0]["seconds"], 2)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and the JSON."""
    lengths: dict[str, Any] = asdict(Work())
    more: dict[str, Any] = {"dtype": "float32", "device": "cpu", "micro_batch": 8, "rounds": 2, "sides": tuple(MODULES)}
    options = read_options(__doc__, arguments, model=str(WORLD_BASE), **lengths, **more)
    work = Work(**{name: getattr(options, name) for name in lengths})
    if work.episodes % options.micro_batch:
        raise UserError(f"--micro-batch {options.micro_batch} does not divide {work.episodes} episodes evenly")
    known = installed()
    for side, command in {TRL: "make peers", VLLM: "make engine"}.items():
        if side in options.sides and side not in known:
            print(f"{side} is not installed and is left out: `{command}`", file=sys.stderr)
    names = ("dtype", "device", "threads", "micro_batch", "repeats")
    settings: dict[str, Any] = {name: getattr(options, name) for name in names}
    settings |= {"work": asdict(work), "model": str(Path(options.model).resolve())}
    sides = [side for side in MODULES if side == OURS or (side in options.sides and side in known)]
    runs: dict[str, list[Figures]] = {side: [] for side in sides}
    for _ in range(options.rounds):
        for side, rounds in runs.items():
            rounds.append(run(side, settings))
    report(rows_of(runs), options, peers=known, episodes=work.episodes, context=work.context)


if __name__ == "__main__":
    main()
