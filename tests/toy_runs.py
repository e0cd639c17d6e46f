"""Experiments of toys on disk, and `train.py` run on them in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

import train
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
