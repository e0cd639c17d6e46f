"""The processes that share the work: decisions of rank 0 for all, values of all, and the error of the first to fail."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from common.errors import UserError
from common.terminal import print_error
from pipeline.failures import machine_failure

T = TypeVar("T")
LAUNCHER = "LAUNCHER_PID"  # set by `launch`, read by the ranks
_NOTICED = 2.0  # seconds in which the launcher, which looks ten times a second, has seen a killed rank


def environment_number(name: str, default: int) -> int:
    """A number in the environment; the default where it is none, which `process_group` reports."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default


@dataclass(frozen=True)
class Ranks:
    """This process among those that share the work; a single one by default."""

    rank: int = field(
        default_factory=lambda: environment_number("RANK", 0) % max(1, environment_number("WORLD_SIZE", 1))
    )
    world_size: int = 1
    group: Any = None
    store: Any = None

    def broadcast_from_rank0(self, call: Callable[[], T]) -> T:
        """Call on rank 0 alone; all ranks return its result, or raise its error.

        Raises:
            UserError: the call raised it on rank 0.
        """
        if self.group is None:
            return call()
        from torch.distributed import broadcast_object_list

        outcome: list[Any] = [None, None]
        if self.rank == 0:
            try:
                outcome[0] = call()
            except UserError as error:
                outcome[1] = error
        broadcast_object_list(outcome, src=0, group=self.group)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def run_on_all(self, call: Callable[[], T]) -> T:
        """Call on every rank, then wait for the slowest; where a rank fails, all fail.

        Raises:
            UserError: names the rank that failed; the same on all ranks.
        """
        if self.group is None:
            return call()
        result, failure = None, None
        try:
            result = call()
        except UserError as error:
            failure = str(error)
        except Exception as error:  # a bug: the traceback is printed here, the other ranks get its name
            _wait_for_launcher()
            failure = machine_failure(error)
            if failure is None:
                traceback.print_exc()
                failure = f"{type(error).__name__}: {error}"
        for rank, reason in enumerate(self.gather(failure)):
            if reason is not None:
                raise UserError(f"rank {rank}: {reason}")
        return result  # type: ignore[return-value]

    def gather(self, value: T) -> list[T]:
        """Every rank's value, on every rank."""
        if self.group is None:
            return [value]
        from torch.distributed import all_gather_object

        values: list[Any] = [None] * self.world_size
        all_gather_object(values, value, group=self.group)
        return values

    def reports_error(self) -> bool:
        """Whether this rank is the first to fail and so prints the error; call it once a failing rank."""
        if self.store is None:
            return self.rank == 0
        try:
            return self.store.add("errors", 1) == 1
        except RuntimeError:  # the rank that hosts the store has printed its error and exited
            return False

    def report(self, error: Exception) -> None:
        """Print the line of an error on the first rank to fail; raise one that has none, which is a bug."""
        if not isinstance(error, UserError):
            _wait_for_launcher()
        line = str(error) if isinstance(error, UserError) else machine_failure(error)
        if self.reports_error():
            if line is None:
                raise error
            print_error(line)


def _wait_for_launcher() -> None:
    """Give the launcher time to end this rank, which fails because another one was killed: it names that one."""
    if LAUNCHER in os.environ:
        time.sleep(_NOTICED)
