"""Heartbeats: a rank that falls silent is named within its time, one that is only slow or done is not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from pipeline.heartbeat import Heartbeat

ROOT = Path(__file__).parents[2]


def beating(store: Any, rank: int, lost: list[int | None], silent: float = 0.5) -> Heartbeat:
    return Heartbeat(store, rank, 2, lost.append, every=0.05, silent=silent)


def until(met: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_ranks_that_wait_for_each_other_are_not_silent_and_one_that_is_done_is_not_missed() -> None:
    store, lost = HashStore(), list[int | None]()
    first, second = beating(store, 0, lost, silent=3.0), beating(store, 1, lost, silent=3.0)
    until(lambda: store.check(["heartbeat/0", "heartbeat/1"]) and store.get("heartbeat/1") == b"2")
    second.end()
    assert store.get("heartbeat/1") == b"ended"
    time.sleep(4)
    assert lost == []
    first.end()


def test_a_rank_that_falls_silent_is_named() -> None:
    store, lost = HashStore(), list[int | None]()
    store.set("heartbeat/1", "7")
    first = beating(store, 0, lost)
    until(lambda: lost == [1])
    first.end()


def test_a_rank_that_never_spoke_is_named() -> None:
    lost = list[int | None]()
    first = beating(HashStore(), 0, lost)
    until(lambda: lost == [1])
    first.end()


def test_a_store_that_is_gone_is_said() -> None:
    class Gone(HashStore):
        def set(self, key: str, value: Any) -> None:
            raise RuntimeError("Connection reset by peer")

    lost = list[int | None]()
    first = beating(Gone(), 0, lost)
    until(lambda: lost == [None])
    first.end()


def test_who_was_stopped_itself_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler may stop all ranks for an hour; whoever wakes first has heard nothing of the others."""
    clock, real = [0.0], time.monotonic
    monkeypatch.setattr("pipeline.heartbeat.time.monotonic", lambda: real() + clock[0])
    store, lost = HashStore(), list[int | None]()
    first = beating(store, 0, lost, silent=30.0)
    store.set("heartbeat/1", "7")
    until(lambda: store.check(["heartbeat/0"]))
    clock[0] = 3600.0
    before = int(store.get("heartbeat/0"))
    until(lambda: int(store.get("heartbeat/0")) > before + 3)
    assert lost == []
    first.end()


STOPPED = """
import os, signal, sys
from pipeline.heartbeat import Heartbeat
from pipeline.launcher import exit_with, process_group
from pipeline.schema import Experiment
Heartbeat.__init__.__kwdefaults__.update(every=0.2, silent=5.0)
def main():
    with process_group(Experiment("toy", {}, devices=2, accelerator="cpu")) as ranks:
        ranks.gather(None)
        if ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        ranks.gather(None)
    return 0
exit_with(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="stops a process")
def test_a_rank_that_stands_still_ends_the_run_in_one_line(tmp_path: Path) -> None:
    """The other one waits for it in a collective call without a limit."""
    (tmp_path / "main.py").write_text(STOPPED)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--shutdown-timeout=1",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, "main.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 1
    said = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    assert said == ["error: rank 1 has given no sign of life for minutes: run the same command to resume"]
