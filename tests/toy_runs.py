"""Experiments of toys on disk, and `train.py` run on them: in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

import train
from common.terminal import flush_output
from pipeline.launcher import Ranks
from pipeline.loader import load
from pipeline.plan import Plan
from pipeline.stages import run_stage
from tests import micro

ROOT = Path(train.__file__).parent
NUMBERS = {"target": "tests.toys:Numbers"}


def config(folder: Path, stages: dict[str, Any], **settings: Any) -> Path:
    path = folder / "x.yaml"
    settings = {"experiment": "toy", "output": str(folder / "runs"), "accelerator": "cpu", "stages": stages} | settings
    path.write_text(yaml.safe_dump(settings))
    return path


def chain(folder: Path, **settings: Any) -> Path:
    more = NUMBERS | {"count": 2, "source": "${stage:first}"}
    return config(folder, {"first": {"data": NUMBERS | {"count": 3}}, "more": {"data": more}}, **settings)


def reading(folder: Path, corpus: str = "corpus.txt") -> Path:
    """Two stages that read the same input file, the second also what the first made."""
    (folder / "corpus.txt").write_text("first\n")
    read = {"target": "tests.toys:Reads", "corpus": str(folder / corpus)}
    one, two = read | {"name": "one"}, read | {"name": "two", "source": "${stage:one}"}
    return config(folder, {"one": {"data": one}, "two": {"data": two}})


def made(path: Path, *overrides: str) -> Plan:
    """Run all stages in this process, without a report."""
    plan = Plan.of(load(path, overrides)).checked()
    for name in plan.chosen:
        run_stage(name, plan, Ranks())
    return plan


def fitting(folder: Path, epochs: int = 4, **callbacks: Any) -> Path:
    checkpoints = {"target": "lightning.pytorch.callbacks:ModelCheckpoint", "save_last": True}
    stage = {
        "module": {"target": "tests.toy_training:Slope"},
        "data": {"target": "tests.toy_training:Line"},
        "callbacks": {"checkpoints": checkpoints} | callbacks,
        "trainer": {"max_epochs": epochs},
    }
    return config(folder, {"fit": stage})


def run(path: Path, *arguments: str) -> int:
    return micro.run(*arguments, config=path)


def process(
    path: Path, *arguments: str, launcher: Sequence[str] = (), new_session: bool = False
) -> subprocess.Popen[str]:
    # Whoever runs the tests may ignore hang-ups (nohup), and what is started would do so too.
    command = [
        "env",
        "--default-signal=HUP",
        sys.executable,
        *launcher,
        str(ROOT / "train.py"),
        "--config",
        str(path),
        *arguments,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, cwd=ROOT, env=environment, start_new_session=new_session, **pipes)


def forked(path: Path, *arguments: str, before: Callable[[], object] = lambda: None) -> int:
    """Start `train.py` in a child of this process, which need not import libraries again; returns its id."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        code = 1
        try:
            before()
            code = run(path, *arguments)
            flush_output()
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    """The exit code of a child, once it has ended; that of a signal is negative."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def until(condition: Callable[[], Any], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def artifact(folder: Path, stage: str) -> Path:
    (found,) = [path for path in (folder / "runs" / "store").glob(f"{stage}-*") if path.suffix != ".old"]
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(artifact(folder, "fit") / "model" / "weights.pt")
