"""The peers that benchmarks run beside the suite, where they are installed, and what both sides are given."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

from benchmarks.equal_turns import Work
from benchmarks.made_up_episodes import WORLD_BASE
from benchmarks.report import ROOT
from datamodules.world_data import WorldData
from modules.samplers.vllm.command import installed_version
from modules.samplers.vllm.engine import ENGINE_PYTHON

PEERS = ROOT / ".peers"


def installed() -> dict[str, str]:
    """Versions of the peers that are there: `trl` after `make peers`, `vllm` after `make engine`."""
    found = {one.name: one.version for one in distributions(path=[str(PEERS)]) if one.name == "trl"}
    return found | ({"vllm": installed_version(ENGINE_PYTHON)} if ENGINE_PYTHON.exists() else {})


def without(missing: str, command: str) -> None:
    """Say on standard error that a peer is left out."""
    print(f"{missing} is not installed and is left out: `{command}`", file=sys.stderr)


def make_world(folder: Path, questions: int) -> None:
    """An embedded world with at least so many questions for training; both sides get these and its passages."""
    splits = {"rl": float(questions), "test": questions / 4}  # a split is drawn by hash, so it takes some more
    WorldData(hops=(1, 2), questions=2 * questions, splits=splits).make(folder, seed=0, rank=0, world_size=1)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options that all comparisons with peers have; see `settings`."""
    work = Work()
    parser.add_argument("--model", default=str(WORLD_BASE), help="folder of a causal language model")
    parser.add_argument("--questions", type=int, default=work.questions)
    parser.add_argument("--group", type=int, default=work.group, help="episodes a question")
    parser.add_argument("--turns", type=int, default=work.turns, help="of an episode")
    parser.add_argument("--turn-tokens", type=int, default=work.turn_tokens, help="sampled in a turn")
    parser.add_argument("--mixed", action="store_true", help="1 to so many turns, of a third up to all of their tokens")
    parser.add_argument("--observation", type=int, default=work.observation, help="tokens that are read after a turn")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where the JSON is written too")


def work_of(options: argparse.Namespace, prompt: int) -> Work:
    """The work that the options ask for, with a prompt of so many tokens."""
    lengths = (options.turns, options.turn_tokens, options.observation)
    return Work(options.questions, options.group, *lengths, prompt=prompt, mixed=options.mixed)


def settings_of(options: argparse.Namespace, world: Path, **more: Any) -> dict[str, Any]:
    """What every way's process is told."""
    names = ("model", "temperature", "dtype", "device", "threads")
    model = options.model if options.model.startswith("/") else str((Path.cwd() / options.model).resolve())
    return {name: getattr(options, name) for name in names} | {"model": model, "world": str(world)} | more
