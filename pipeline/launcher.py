"""Several processes: start them, join them, and keep them of one mind.

`torch.distributed.run` is the only launcher: it starts the ranks, and when one leaves it ends the others.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from common.errors import ConfigError, UserError
from pipeline.schema import Experiment

T = TypeVar("T")
_LAUNCHER = "LAUNCHER_PID"  # set by `start`, for the ranks
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PATIENCE = timedelta(days=30)  # ranks may differ by hours; a dead rank is the launcher's business, not a timeout's


@dataclass(frozen=True)
class Ranks:
    """This process among those that share the work; alone until `joined`."""

    rank: int = field(default_factory=lambda: int(os.environ.get("RANK", "0")))
    world_size: int = 1
    group: Any = None
    store: Any = None

    def agree(self, decide: Callable[[], T]) -> T:
        """Rank 0 decides; all ranks get its answer, or its error.

        Raises:
            UserError: rank 0's own.
        """
        if self.group is None:
            return decide()
        from torch.distributed import broadcast_object_list

        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome[0] = decide()
            except UserError as error:
                outcome[1] = error
        broadcast_object_list(outcome, src=0, group=self.group)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def everywhere(self, work: Callable[[], T]) -> T:
        """Every rank works, then all wait for the last; where one fails, all fail.

        Raises:
            UserError: names the rank that failed; the same on all ranks.
        """
        if self.group is None:
            return work()
        from torch.distributed import all_gather_object

        result, failure = None, None
        try:
            result = work()
        except UserError as error:
            failure = str(error)
        except Exception as error:  # a bug: its traceback here, its name to the others
            traceback.print_exc()
            failure = f"{type(error).__name__}: {error}"
        failures: list[str | None] = [None] * self.world_size
        all_gather_object(failures, failure, group=self.group)
        for rank, failure in enumerate(failures):
            if failure is not None:
                raise UserError(f"rank {rank}: {failure}")
        return result  # type: ignore[return-value]

    def speaks(self) -> bool:
        """Whether this rank is the first with an error to tell; each that has one asks once."""
        if self.store is None:
            return self.rank == 0
        try:
            return self.store.add("errors", 1) == 1
        except RuntimeError:  # whoever kept the store has told its error and left
            return False


@contextmanager
def joined(experiment: Experiment) -> Iterator[Ranks]:
    """The ranks that a launcher started, where there is one (`RANK` is set); else this process alone.

    Raises:
        ConfigError: the launcher started another number of processes than the experiment asks for.
    """
    if "RANK" not in os.environ:
        yield Ranks()
        return
    _end_with_launcher()
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != experiment.world_size:
        asked = f"devices {experiment.devices} x num_nodes {experiment.num_nodes}"
        raise ConfigError(f"the launcher started {started} processes, but the experiment asks for {asked}")
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    on_gpu = experiment.accelerator != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        store, rank, world_size = next(iter(rendezvous("env://")))
    except ValueError as error:
        raise ConfigError(f"RANK is set, as a launcher does, but not all that goes with it: {error}") from error
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=_PATIENCE)
    yield Ranks(rank, world_size, dist.new_group(backend="gloo", timeout=_PATIENCE), store)
    dist.destroy_process_group()  # not after an error: the others may be gone, and taking leave would wait for them


def _end_with_launcher() -> None:
    """Have the kernel kill this rank when the launcher ends, killed or not: else it would wait for the others.

    Python's own signal handlers do not run while a rank waits for another inside torch, hence SIGKILL. Only Linux can.
    """
    launcher = os.environ.get(_LAUNCHER)
    if launcher is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(launcher):  # it ended before it could be watched
        os._exit(128 + signal.SIGKILL)


def must_start(experiment: Experiment) -> bool:
    """Whether this process has to start the ranks, because no launcher did.

    Raises:
        ConfigError: the experiment spans several machines, each of which needs a launcher.
    """
    if experiment.world_size == 1 or "RANK" in os.environ:
        return False
    if experiment.num_nodes > 1:
        raise ConfigError(f"num_nodes is {experiment.num_nodes}: start train.py with torchrun on each machine")
    return True


def start(script: Path, arguments: Sequence[str], devices: int) -> int:
    """Run a script once a device under `torch.distributed.run`; returns the exit code of the rank that made it fail."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // devices)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the rank has told its error itself
    os.environ[_LAUNCHER] = str(os.getpid())
    try:
        main(["--standalone", f"--nproc-per-node={devices}", str(script), *arguments])
    except ChildFailedError as error:
        return _blame(error.failures)
    except SignalException as error:
        return 128 + error.sigval
    finally:
        del os.environ[_LAUNCHER]
    return 0


def _blame(failures: Mapping[int, Any]) -> int:
    """The exit code of the first rank to fail, or of one that was killed: the others only fail of its silence."""
    rank, failure = min(failures.items(), key=lambda item: (item[1].exitcode > 0, item[1].timestamp))
    if failure.exitcode > 0:
        return failure.exitcode
    why = ", often for lack of memory" if failure.exitcode == -signal.SIGKILL else ""
    print(f"error: rank {rank} was killed ({failure.signal_name()}{why}): the same command goes on", file=sys.stderr)
    return 128 - failure.exitcode


def leave_at_once(number: int, _: object) -> NoReturn:
    """A signal handler that ends this process, and whatever its threads wait for: the next run redoes the open unit."""
    if number == signal.SIGINT and os.environ.get("RANK", "0") == "0":
        os.write(2, b"interrupted: the same command goes on\n")  # print may be what was interrupted
    with suppress(RuntimeError):
        sys.stdout.flush()
    os._exit(128 + number)


def leave(main: Callable[[], int]) -> NoReturn:
    """Exit with what `main` returns, or as the exception it raises would have it.

    One of several ranks leaves at once when it fails: tearing down a process group whose other ranks are gone can
    abort the process, and the launcher would report that instead of the error.
    """
    try:
        code = main()
    except SystemExit as left:
        code = int(left.code or 0)
    except Exception:
        traceback.print_exc()
        code = 1
    if code and "RANK" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
