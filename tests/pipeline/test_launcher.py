"""How a process exits: with clean-up by itself, without it as a failed rank among several."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from common.errors import ConfigError
from pipeline import launcher
from pipeline.launcher import process_group
from pipeline.schema import Experiment

KILLED = "error: rank 1 was killed (SIGKILL, often for lack of memory): run the same command to resume\n"
ROOT = Path(__file__).parents[2]
SCRIPT = """
import atexit, sys
from pipeline.launcher import exit_with
atexit.register(print, "torn down")
def main():
    print("working")
    {ending}
exit_with(main)
"""


@pytest.mark.parametrize(
    ("ending", "rank", "code", "out"),
    [
        ("return 0", None, 0, ["working", "torn down"]),
        ("return 0", "1", 0, ["working", "torn down"]),
        ("return 2", None, 2, ["working", "torn down"]),
        ("return 2", "1", 2, ["working"]),
        ("sys.exit(143)", "1", 143, ["working"]),
        ("sys.exit()", "1", 0, ["working", "torn down"]),
        ("raise KeyError('a bug')", "1", 1, ["working"]),
        ("raise KeyError('a bug')", None, 1, ["working", "torn down"]),
    ],
)
def test_a_failed_rank_exits_before_its_process_group_is_torn_down(
    ending: str, rank: str | None, code: int, out: list[str]
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    environment |= {"PYTHONPATH": str(ROOT)} | ({"RANK": rank} if rank else {})
    script = SCRIPT.format(ending=ending)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split("\n")[:-1]) == (code, out)
    assert ("KeyError: 'a bug'" in done.stderr) == ("raise" in ending)


def failed(rank: int, code: int, second: int) -> ProcessFailure:
    failure = ProcessFailure(rank, pid=100 + rank, exitcode=code, error_file="")
    failure.timestamp = second
    return failure


@pytest.mark.parametrize(
    ("codes", "seconds", "code", "said"),
    [
        ((2, 1), (5, 5), 2, ""),
        ((2, 1), (6, 5), 1, ""),
        ((1, 143), (6, 5), 143, ""),
        (
            (1, -9),
            (5, 6),
            137,
            "error: rank 1 was killed (SIGKILL, often for lack of memory): run the same command to resume\n",
        ),
        ((-11, 1), (5, 5), 139, "error: rank 0 was killed (SIGSEGV): run the same command to resume\n"),
    ],
)
def test_a_killed_rank_decides_the_exit_code_even_if_another_failure_is_seen_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], codes: Any, seconds: Any, code: int, said: str
) -> None:
    def fail(arguments: list[str]) -> None:
        raise ChildFailedError("train.py", {rank: failed(rank, codes[rank], seconds[rank]) for rank in (0, 1)})

    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # else it would set one
    monkeypatch.setattr("torch.distributed.run.main", fail)
    failed_at, plan = [], SimpleNamespace(experiment=Experiment("x", {}, devices=2), folder=Path("runs/x"))
    assert launcher.launch(Path("train.py"), [], cast(Any, plan), failed_at.append) == code
    assert failed_at == [Path("runs/x")][: code == 1]
    assert capsys.readouterr().err == said


def test_more_devices_than_there_are_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with (
        pytest.raises(ConfigError, match="devices is 2, and this machine has 1 GPUs"),
        process_group(Experiment("x", {}, devices=2)),
    ):
        pass
