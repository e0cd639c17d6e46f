"""The line that an interrupted run ends with: what is kept, and the command that resumes it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from common.progress import duration
from pipeline.ranks import LAUNCHER

if TYPE_CHECKING:
    from pipeline.plan import Plan, PlannedStage

_plan: Plan | None = None


def remember(plan: Plan) -> None:
    """Have an interruption say what is kept of this plan's stages."""
    global _plan
    _plan = plan


def say_interrupted(number: int, said: str = "nothing has begun") -> None:
    """Print to stderr what is kept and how to resume, also in a signal handler: `print` may have been interrupted."""
    command = "the same command"
    with suppress(Exception):  # a disk that is gone, say
        said = kept(_plan) if _plan is not None else said
        command = _command()
    line = f"interrupted ({signal.Signals(number).name}); {said}; to resume: {command}\n"
    with suppress(OSError):  # the terminal may be gone
        os.write(2, ("\n" if sys.stderr.isatty() else "").encode() + line.encode("utf-8", "backslashreplace"))


def kept(plan: Plan) -> str:
    """`kept: 4 of 9 stages, and rl up to its checkpoint of 3 min ago`."""
    stages = [plan.stages[name] for name in plan.chosen]
    done = sum(stage.artifact.complete for stage in stages)
    said = [f"kept: {done} of {len(stages)} stages"]
    if (current := _begun(plan)) is not None and (part := _part(current)):
        said.append(f"and {part}")
    return ", ".join(said)


def without_force(words: list[str], still: set[str]) -> list[str]:
    """The words of a command line without `--force` for stages but those that are `still` to be made again."""
    left: list[str] = []
    forcing = False
    for word in words:
        forcing = word == "--force" or (forcing and not word.startswith("-") and "=" not in word)
        if not forcing and not word.startswith("--force="):
            left.append(word)
    return [*left, *(["--force", *sorted(still)] if still else [])]


def _begun(plan: Plan) -> PlannedStage | None:
    """The stage that was at work."""
    stages = (plan.stages[name] for name in plan.chosen)
    return next((stage for stage in stages if stage.artifact.begun and not stage.artifact.complete), None)


def _part(stage: PlannedStage) -> str:
    folder = stage.artifact.folder
    if stage.stage.module is None:
        units = len(list((folder / "data" / "units").rglob("*.jsonl")))
        return f"{units} units of {stage.name}" if units else ""
    last = folder / "checkpoints" / "last.ckpt"
    ago = duration(max(0.0, time.time() - last.stat().st_mtime)) if last.exists() else ""
    return f"{stage.name} up to its checkpoint of {ago} ago" if ago else ""


def _command() -> str:
    if "RANK" in os.environ and LAUNCHER not in os.environ:
        return "the same command on each machine"
    still: set[str] = set()
    if _plan is not None and (current := _begun(_plan)) is not None:
        later = _plan.chosen[_plan.chosen.index(current.name) + 1 :]
        still = {name for name in later if _plan.stages[name].forced}
    module = getattr(sys.modules["__main__"], "__spec__", None)  # of `python -m`
    words = ["-m", module.name, *sys.argv[1:]] if module and module.origin == sys.argv[0] else sys.argv
    return shlex.join([sys.orig_argv[0], *without_force(words, still)])
