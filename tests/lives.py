"""A run that is broken off again and again: every life of it is a process that ends at a given moment.

`python -m tests.lives BREAKS.json train's arguments`: `[stage, kind, number, signal]` each; the last life is let be.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import train
from envs.retrieval import RetrievalEnvironment

PAGES = "pages"  # what is written outside of stages
IMPORTED = ("lightning.pytorch", "torch.utils.tensorboard", "callbacks.rollout", "modules.prm", "modules.sft")


class Break(NamedTuple):
    """The `number`th moment of a kind in a stage, counted from the start of a life."""

    stage: str
    kind: str
    number: int
    signal: int = signal.SIGKILL


@contextmanager
def moments(end: Break | None = None) -> Iterator[Counter[tuple[str, str]]]:
    """Counts the moments of a run by stage and kind, and ends its process at one of them.

    A `turn` of some episodes was applied, an `update` was made by an optimiser, a `file` or a `checkpoint` was written
    beside its target and is about to take its place. A process that is killed while it writes leaves half a file.
    """
    counted: Counter[tuple[str, str]] = Counter()
    stage = PAGES

    def at(kind: str, written: Path | None = None) -> None:
        counted[stage, kind] += 1
        if end is not None and (stage, kind, counted[stage, kind]) == end[:3]:
            if end.signal == signal.SIGKILL and written is not None and written.is_file():
                os.truncate(written, written.stat().st_size // 2)
            os.kill(os.getpid(), end.signal)

    run_stage, apply, replace = train.run_stage, RetrievalEnvironment.apply, os.replace

    def running(name: str, *arguments: Any) -> None:
        nonlocal stage
        stage = name
        run_stage(name, *arguments)
        stage = PAGES

    def applied(*arguments: Any) -> None:
        apply(*arguments)
        at("turn")

    def replaced(source: Any, target: Any) -> None:
        at("checkpoint" if str(target).endswith(".ckpt") else "file", Path(source))
        replace(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "run_stage", running)
        patch.setattr(RetrievalEnvironment, "apply", applied)
        patch.setattr(os, "replace", replaced)
        updates = register_optimizer_step_post_hook(lambda *_: at("update"))
        yield counted
        updates.remove()


def live(breaks: Sequence[Break], arguments: Sequence[str]) -> None:
    """One life for every break, and a last one.

    Raises:
        SystemExit: a life ended in another way than it was to.
    """
    for end in [*breaks, None]:
        sys.stdout.flush()
        child = os.fork()  # what was imported need not be imported again
        if not child:
            with moments(end):
                code = _train(arguments)
            sys.stdout.flush()
            os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        wanted = {signal.SIGKILL: -9, signal.SIGTERM: 143, None: 0}[None if end is None else end.signal]
        if status != wanted:
            sys.exit(f"a life that was to end with {wanted} at {end} ended with {status}")


def _train(arguments: Sequence[str]) -> int:
    try:
        return train.main(arguments)
    except SystemExit as left:
        return int(left.code or 0)


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    live([Break(*one) for one in json.loads(Path(sys.argv[1]).read_text())], sys.argv[2:])
