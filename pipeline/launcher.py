"""Several processes: launch them, join their process group, exit.

`torch.distributed.run` is the only launcher: it starts the ranks, and when a rank exits with an error it ends the rest.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from common.errors import ConfigError, UserError
from common.files import remove_temporary, temporary
from common.terminal import flush_output, print_error
from pipeline.heartbeat import Heartbeat
from pipeline.interruption import remember, say_interrupted
from pipeline.ranks import LAUNCHER, Ranks, environment_number
from pipeline.schema import Experiment

if TYPE_CHECKING:
    from pipeline.plan import Plan

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_MOST_RANKS = 64  # or the number of cores, if that is more
_TIMEOUT = timedelta(days=30)  # ranks may differ by hours; one that is gone is noticed by launcher and heartbeats
_GPU_TIMEOUT = timedelta(minutes=30)  # between GPUs, which meet in training alone, once ranks have waited on the CPU


@contextmanager
def process_group(experiment: Experiment) -> Iterator[Ranks]:
    """Join the ranks that a launcher started (`RANK` is set); without a launcher, this process alone.

    Raises:
        ConfigError: the launcher started another number of processes than the experiment has, or than there are GPUs;
            what it set is not complete; or srun started several processes, none of which knows of the others.
    """
    if "RANK" not in os.environ:
        _require_one_task()
        yield Ranks()
        return
    _end_with_launcher()
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"):
        if not os.environ.get(name, "0").isdecimal():
            raise ConfigError(f"{name} is '{os.environ[name]}', which is no number: torchrun sets it")
    started = environment_number("WORLD_SIZE", 1)
    if environment_number("RANK", 0) >= started:
        raise ConfigError(f"RANK is {os.environ['RANK']}, and WORLD_SIZE {started}: ranks count from 0")
    if started != experiment.world_size:
        expected = f"devices {experiment.devices} x num_nodes {experiment.num_nodes}"
        raise ConfigError(f"the launcher started {started} processes, but the experiment has {expected}")
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    on_gpu = experiment.accelerator != "cpu" and torch.cuda.is_available()
    if on_gpu:
        own, there = environment_number("LOCAL_RANK", 0), torch.cuda.device_count()
        if (
            max(own + 1, environment_number("LOCAL_WORLD_SIZE", experiment.devices)) > there
        ):  # on rank 0 too, which reports it
            raise ConfigError(f"devices is {experiment.devices}, and this machine has {there} GPUs")
        torch.cuda.set_device(own)
    try:
        store, rank, world_size = next(iter(rendezvous("env://")))
    except ValueError as error:
        raise ConfigError(f"RANK is set, but not every variable that a launcher sets with it: {error}") from error
    except dist.DistError as error:
        reason = str(error).splitlines()[0]
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise UserError(f"the processes cannot meet at {address}: {reason}") from error
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT)
    if on_gpu:
        group: Any = dist.group.WORLD
        group._get_backend(torch.device("cuda"))._set_default_timeout(_GPU_TIMEOUT)
    ranks = Ranks(rank, world_size, dist.new_group(backend="gloo", timeout=_TIMEOUT), store)
    own = cast(Any, store).clone()  # the other may wait for ever
    heartbeat = Heartbeat(own, rank, world_size, lambda lost: _exit_without(lost, Ranks(rank, world_size, store=own)))
    yield ranks
    heartbeat.end()
    dist.destroy_process_group()  # not after an error: it would wait for ranks that may have exited


def _exit_without(lost: int | None, ranks: Ranks) -> NoReturn:
    """End this process at once, from any thread: the rank that it waits for is lost."""
    who = "the first rank's launcher is gone" if lost is None else f"rank {lost} has given no sign of life for minutes"
    if lost is None or ranks.reports_error():
        print_error(f"{who}: {_how_to_resume()}")
    remove_temporary()
    os._exit(1)


def _require_one_task() -> None:
    """SLURM's variables name the tasks of a whole job in every process; those of a step are set by srun alone."""
    tasks = environment_number("SLURM_STEP_NUM_TASKS", 1)
    if tasks > 1 or environment_number("SLURM_PROCID", 0) > 0:
        started = f"{tasks} tasks" if tasks > 1 else "several tasks"
        raise ConfigError(
            f"srun started {started}, and each would run the whole experiment: start one a machine (srun --ntasks=1, "
            "which starts a process a device itself), or torchrun on each of several machines"
        )


def _end_with_launcher() -> None:
    """Have the kernel kill this rank when the launcher ends, however it ends (Linux only).

    Without it, ranks whose launcher was killed would wait for each other until a timeout. The signal is SIGKILL because
    Python's signal handlers do not run while a rank waits inside torch.
    """
    launcher = os.environ.get(LAUNCHER)
    if launcher is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(launcher):  # the launcher ended before the call above
        os._exit(128 + signal.SIGKILL)


def require_gpus(experiment: Experiment, *, needed: bool) -> None:
    """Require as many GPUs in this machine as `accelerator: gpu` asks for, where there is work that needs them.

    Raises:
        ConfigError: there are fewer; says why there is none, such as a driver that is too old.
    """
    if not needed or experiment.accelerator not in ("gpu", "cuda"):
        return
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if there < experiment.devices:
        why = str(said[0].message).split(" (Triggered")[0] if said else f"torch is {torch.__version__}"
        raise ConfigError(
            f"accelerator is {experiment.accelerator}, devices {experiment.devices}, and torch sees {there} GPUs here "
            f"({why}): set accelerator=cpu to run without"
        )


def needs_launch(experiment: Experiment) -> bool:
    """Whether this process has to launch the ranks: there are several, and no launcher has started them.

    Raises:
        ConfigError: the experiment spans several machines, each of which needs a launcher, or more processes than
            any machine has devices.
    """
    if experiment.world_size == 1 or "RANK" in os.environ:
        return False
    if experiment.num_nodes > 1:
        raise ConfigError(f"num_nodes is {experiment.num_nodes}: start train.py with torchrun on each machine")
    if experiment.devices > (most := max(_MOST_RANKS, os.cpu_count() or 1)):
        raise ConfigError(f"devices is {experiment.devices}: this machine takes {most} processes at most")
    return True


def launch(script: Path, arguments: Sequence[str], plan: Plan, failed: Callable[[Path], object]) -> int:
    """Run a script on each device under `torch.distributed.run`; returns the exit code of the first rank to fail.

    `failed` is called with the experiment's folder if they fail at work, and not before any, nor by a signal.
    """
    remember(plan)
    code = _run_ranks(script, arguments, plan.experiment.devices)
    if code == 1:
        failed(plan.folder)
    return code


def _run_ranks(script: Path, arguments: Sequence[str], devices: int) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // devices)))
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the rank has printed its error itself
    os.environ[LAUNCHER] = str(os.getpid())
    handled = ",".join(number.name for number in ending_signals())
    try:
        with temporary(Path(tempfile.mkdtemp(prefix="ranks-"))) as logs:
            options = ["--standalone", f"--nproc-per-node={devices}", f"--log-dir={logs}"]
            main([*options, f"--signals-to-handle={handled}", str(script), *arguments])
    except ChildFailedError as error:
        return _exit_code(error.failures)
    except SignalException as error:
        say_interrupted(error.sigval)
        return 128 + error.sigval
    finally:
        del os.environ[LAUNCHER]
    return 0


def _exit_code(failures: Mapping[int, Any]) -> int:
    """The exit code of the first rank to fail, or of a rank that was killed: the others fail because it is gone."""
    rank, failure = min(failures.items(), key=lambda item: (item[1].exitcode > 0, item[1].timestamp))
    if failure.exitcode > 0:
        return failure.exitcode
    why = ", often for lack of memory" if failure.exitcode == -signal.SIGKILL else ""
    print_error(f"rank {rank} was killed ({failure.signal_name()}{why}): {_how_to_resume()}")
    return 128 - failure.exitcode


def handle_signals() -> None:
    """End this process at once on the signals that end a run."""
    for number in ending_signals():
        signal.signal(number, exit_on_signal)


def ending_signals() -> list[signal.Signals]:
    """SIGTERM, SIGINT, and the SIGHUP of a terminal that is gone, unless `nohup` has it ignored."""
    hangup = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hangup]


def exit_on_signal(number: int, _: object) -> NoReturn:
    """A signal handler that ends this process and its threads at once: the next run repeats the unfinished unit."""
    launched = os.environ.get(LAUNCHER, str(os.getpid())) != str(os.getpid())
    if os.environ.get("RANK", "0") == "0" and not launched:  # the launcher says it for its ranks
        say_interrupted(number)
    remove_temporary()
    with suppress(RuntimeError, OSError):
        sys.stdout.flush()
    os._exit(128 + number)


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Exit with the code that `main` returns, or with that of the exception that it raises.

    A failing rank among several exits without any clean-up: tearing down a process group whose other ranks are gone can
    abort the process, and the launcher would report the abort instead of the error.
    """
    try:
        code = main()
    except SystemExit as exit:
        code = int(exit.code or 0)
    except Exception:
        traceback.print_exc()
        code = 1
    flush_output()
    if code and "RANK" in os.environ:
        os._exit(code)
    sys.exit(code)


def _how_to_resume() -> str:
    forced = any(argument.startswith("--force") for argument in sys.argv)
    return "run the same command to resume" + (", without --force" if forced else "")
