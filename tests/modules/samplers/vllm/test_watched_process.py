"""A server does not outlive the process that started it, whatever ends that one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from modules.samplers.vllm import watched_process
from modules.samplers.vllm.watched_process import WatchedProcess

ROOT = Path(watched_process.__file__).parents[3]
SERVER = "import subprocess, sys; c = subprocess.Popen(['sleep', '60']); print(c.pid, flush=True); c.wait()"
STARTER = f"""
import sys, time
from pathlib import Path
from modules.samplers.vllm.watched_process import WatchedProcess
log = Path(sys.argv[1])
kept = WatchedProcess([sys.executable, "-c", {SERVER!r}], log.parent, log, {{"MARK": "x"}})
time.sleep(60)
"""


def alive(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def eventually(condition: object) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not condition():  # type: ignore[operator]
        time.sleep(0.05)
    return condition()  # type: ignore[operator]


def written(log: Path) -> bool:
    return log.exists() and log.read_text().endswith("\n")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_of_the_process_that_started_it_ends_a_server_and_its_children(tmp_path: Path, end: int) -> None:
    log = tmp_path / "scratch" / "log"
    log.parent.mkdir()
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(log)], cwd=ROOT)
    assert eventually(lambda: written(log))
    child = int(log.read_text())
    assert alive(child)
    os.kill(starter.pid, end)
    starter.wait()
    assert eventually(lambda: not alive(child))
    assert eventually(lambda: not log.parent.exists()), "what was handed over is not left behind either"


def test_a_server_ends_when_its_watcher_is_killed(tmp_path: Path) -> None:
    script = "import os, time; print(os.getpid(), os.getppid(), flush=True); time.sleep(60)"
    process = WatchedProcess([sys.executable, "-c", script], tmp_path, tmp_path / "log", {})
    assert eventually(lambda: written(tmp_path / "log"))
    server, watcher = map(int, (tmp_path / "log").read_text().split())
    os.kill(watcher, signal.SIGKILL)
    assert eventually(lambda: process.ended)
    assert eventually(lambda: not alive(server))


def test_it_ends_when_it_is_stopped_or_forgotten(tmp_path: Path) -> None:
    for stop in (lambda process: process.stop(), lambda process: None):
        log = tmp_path / "log"
        process = WatchedProcess([sys.executable, "-c", SERVER], tmp_path, log, {})
        assert eventually(lambda log=log: written(log))
        child = int(log.read_text())
        assert alive(child)
        assert not process.ended
        stop(process)
        del process
        assert eventually(lambda child=child: not alive(child))
        assert log.exists(), "it was stopped: the folder stays"
        log.unlink()


def test_a_server_that_ends_takes_its_children_along_and_leaves_its_last_words(tmp_path: Path) -> None:
    script = SERVER.replace("c.wait()", "print('no room'); print('good bye'); sys.exit(3)")
    process = WatchedProcess([sys.executable, "-c", script], tmp_path, tmp_path / "log", {})
    assert eventually(lambda: process.ended)
    assert (tmp_path / "log").read_text().splitlines()[-2:] == ["no room", "good bye"]
    assert not alive(int((tmp_path / "log").read_text().split()[0]))
