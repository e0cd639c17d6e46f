"""Sweep: `python -m pipeline.sweep --config FILE key=value,value … seed=0,1,2 [--jobs 2]`.

Every combination is an experiment of its own in one store, so what cells share is made once. A finished cell is not run
again, and one that fails is named while the others run. At the end the cells are compared in one table.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import NoReturn

from common.errors import ConfigError, UserError
from common.files import atomic_write
from common.terminal import prepare_terminal, print_error, say
from pipeline.interruption import say_interrupted
from pipeline.launcher import ending_signals, exit_with
from pipeline.loader import load
from pipeline.plan import Plan
from pipeline.schema import Experiment
from pipeline.sweep_cells import Cell, cells

_TRAIN = Path(__file__).parent.parent / "train.py"
_TABLE = "evaluation.pages.sweep_table"


@dataclass
class Sweep:
    """The cells of a sweep with their plans, and the processes that run them."""

    config: Path
    plans: dict[Cell, Plan]
    failed: dict[Cell, str] = field(default_factory=dict)
    _running: set[subprocess.Popen[str]] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    @property
    def open(self) -> list[Cell]:
        """The cells that are not finished."""
        return [cell for cell, plan in self.plans.items() if not _finished(plan)]

    def command(self, cell: Cell) -> list[str]:
        """The command that runs a cell."""
        return [sys.executable, str(_TRAIN), "--config", str(self.config), *cell.overrides]

    def run(self, jobs: int) -> None:
        """Run the open cells, so many at a time, and note those that failed."""
        environments: Queue[dict[str, str]] = Queue()
        for each in _environments(jobs, next(iter(self.plans.values())).experiment):
            environments.put(each)

        def work(cell: Cell) -> None:
            environment = environments.get()
            try:
                self._run(cell, environment)
            finally:
                environments.put(environment)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, self.open))

    def stop(self, number: int, _: object) -> NoReturn:
        """A signal handler: end the cells that run, each of which keeps its finished units, and this process."""
        with self._lock:
            for process in self._running:
                process.terminate()
            for process in self._running:
                process.wait()
            done = len(self.plans) - len(self.open)
            said = f"kept: {done} of {len(self.plans)} cells, and what the others have made"
            say_interrupted(number, said)
            os._exit(128 + number)

    def _run(self, cell: Cell, environment: dict[str, str]) -> None:
        with self._lock:
            say(f"{cell.name}: begins")
            process = subprocess.Popen(
                self.command(cell),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="backslashreplace",
                start_new_session=True,  # Ctrl-C comes from `stop`, once
            )
            self._running.add(process)
        last = ""
        for line in process.stdout or ():
            last = line.strip() or last
            with self._lock:
                say(f"[{cell.name}] {line.rstrip()}")
        code = process.wait()
        with self._lock:
            self._running.discard(process)
            if code:
                self.failed[cell] = last
            say(f"{cell.name}: {f'failed with exit code {code}' if code else 'finished'}")


def plan_sweep(config: Path, settings: Sequence[str]) -> Sweep:
    """Plan every cell, and check its settings, before any work.

    Raises:
        UserError: a setting of a cell is wrong, or an artifact damaged.
    """
    given = [setting for setting in settings if setting.partition("=")[0] in ("output", "data_root")]
    found = cells(load(config, given).experiment.experiment, settings)
    plans: dict[Cell, Plan] = {}
    for cell in found:
        plans[cell] = Plan.of(load(config, cell.overrides)).checked(imported=False)
        plans[cell].inputs.save()  # a corpus is read once
    return Sweep(config, plans)


def write_table(sweep: Sweep, metric: str) -> str:
    """The table of the finished cells, also written to `<output>/sweeps/<experiment and keys>.md`.

    Raises:
        UserError: results are missing or damaged.
    """
    arms: dict[str, dict[int, Path]] = {}
    for cell, plan in sweep.plans.items():
        if _finished(plan):
            arms.setdefault(cell.arm or plan.experiment.experiment, {})[plan.experiment.seed] = plan.folder
    if not arms:
        return "no cell is finished"
    text = importlib.import_module(_TABLE).sweep_table(arms, metric)  # by name: pipeline imports no other package
    first, plan = next(iter(sweep.plans.items()))
    keys = "".join(f"_{setting.partition('=')[0]}" for setting in first.arm.split(", ") if setting)
    name = load(sweep.config).experiment.experiment + keys
    path = Path(plan.experiment.output) / "sweeps" / f"{name}.md"
    with atomic_write(path) as file:
        file.write(text + "\n")
    return f"{text}\n\ntable: {path}"


def _finished(plan: Plan) -> bool:
    """Whether all stages are made and reported."""
    try:
        results = json.loads((plan.folder / "results.json").read_text(encoding="utf-8"))
        reported = {stage: Path(place).name for stage, place in results["artifacts"].items()}
    except (OSError, ValueError, LookupError, AttributeError):
        return False
    summary = plan.folder / "summary" / "summary.json"  # the last file that a run writes
    made = {stage: plan.stages[stage].artifact.folder.name for stage in plan.chosen}
    return plan.done and summary.exists() and reported.items() >= made.items()


def _environments(jobs: int, experiment: Experiment) -> list[dict[str, str]]:
    """The environment of each job: its share of the cores, and of the GPUs where there are enough for all."""
    environment = dict(os.environ)
    if jobs > 1:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    if jobs == 1 or experiment.accelerator == "cpu":
        return [environment] * jobs
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count()))))
    gpus, each = [gpu for gpu in visible.split(",") if gpu], experiment.devices
    if len(gpus) < jobs * each:
        return [environment] * jobs
    shares = [gpus[job * each : (job + 1) * each] for job in range(jobs)]
    return [environment | {"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares]


def main(arguments: Sequence[str]) -> int:
    """0 if all cells are finished, 1 if one failed, 2 for a wrong setting, before any work."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.sweep", description="Run an experiment with several settings."
    )
    parser.add_argument("--config", required=True, type=Path, help="the experiment file")
    parser.add_argument("--jobs", type=int, default=1, help="cells at the same time (default: 1)")
    parser.add_argument("--cell", type=int, help="run this cell alone, counted from 0, for an array of jobs; no table")
    parser.add_argument("--metric", default="em", help="what the table compares (default: em)")
    parser.add_argument("--dry-run", action="store_true", help="print the cells, and which are finished")
    parser.add_argument("settings", nargs="+", metavar="key=value,value", help="settings, as for train.py")
    options = parser.parse_intermixed_args(arguments)
    prepare_terminal()
    try:
        sweep = plan_sweep(options.config, options.settings)
        all_cells = [*sweep.plans]
        if options.jobs < 1 or (options.cell is not None and not 0 <= options.cell < len(all_cells)):
            raise ConfigError(f"--jobs must be at least 1, and --cell below {len(all_cells)}")
        if options.cell is not None:
            sys.stdout.flush()
            os.execv(sys.executable, sweep.command(all_cells[options.cell]))
        if options.dry_run:
            still = sweep.open
            say(
                "\n".join(
                    f"{number}  {cell.name}: {'would run' if cell in still else 'finished'}"
                    for number, cell in enumerate(all_cells)
                )
            )
            return 0
        for number in ending_signals():
            signal.signal(number, sweep.stop)
        say(f"{len(all_cells)} cells, {len(all_cells) - len(sweep.open)} of them finished")
        sweep.run(options.jobs)
        say(write_table(sweep, options.metric))
    except UserError as error:
        print_error(error)
        return 2 if isinstance(error, ConfigError) else 1
    for cell, line in sweep.failed.items():
        print_error(f"{cell.name} failed: {line}")
    return 1 if sweep.failed else 0


if __name__ == "__main__":
    exit_with(lambda: main(sys.argv[1:]))
