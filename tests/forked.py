"""Processes of `train.py` that are forked from the test's own: neither they nor their ranks import libraries again."""

from __future__ import annotations

import faulthandler
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import faiss
import torch
from torch.distributed.run import main as launch

import train
from pipeline.launcher import exit_with, handle_signals

ROOT = Path(train.__file__).parent
LAUNCHER = "torch.distributed.run"
TORCH_STARTS_RANKS = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler.Popen"
_STARTS = inspect.signature(subprocess.Popen._execute_child)  # pyright: ignore[reportAttributeAccessIssue]


class Forked(subprocess.Popen[str]):
    """A process whose command ends in `train.py` and its arguments: a fork of this one that runs `train.main` on them.

    All else is as in a process of its own: pipes, environment, session, signals. Its ranks are forks of it in turn.
    """

    def _execute_child(self, *given: Any) -> None:
        start = _STARTS.bind(self, *given).arguments
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            _become(start)
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(start[end] for end in ends))  # pyright: ignore[reportAttributeAccessIssue]


def _become(start: dict[str, Any]) -> None:
    """The child's life; it never returns to the test."""
    code = 1
    try:
        if start["start_new_session"]:
            os.setsid()
        for number, end in enumerate(("p2cread", "c2pwrite", "errwrite")):
            if start[end] != -1:
                os.dup2(start[end], number)
        faulthandler.disable()  # it writes into a file of pytest's
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if start["env"] is not None:
            os.environ.clear()
            os.environ.update(start["env"])
        os.chdir(start["cwd"] or ".")
        torch.set_num_threads(1)  # a pool of more threads has not come along: work for it would wait for ever
        faiss.omp_set_num_threads(1)
        if start["preexec_fn"]:
            start["preexec_fn"]()
        words = [str(word) for word in start["args"]]
        (place,) = [number for number, word in enumerate(words) if word.endswith("train.py")]
        sys.argv = words[place:]
        handle_signals()
        with patch(TORCH_STARTS_RANKS, Forked):
            exit_with(lambda: launch(words[3:]) if LAUNCHER in words else train.main(sys.argv[1:]))
    except SystemExit as left:
        code = int(left.code or 0)
    finally:
        os._exit(code)


def start(
    *arguments: str, launcher: Sequence[str] = (), variables: Mapping[str, str] | None = None, **settings: Any
) -> Forked:
    """`train.py` with these arguments and environment variables, its settings those of `subprocess.Popen`.

    With a `launcher`'s arguments it is started by torchrun.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | (variables or {})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with_launcher = ["-m", LAUNCHER, *launcher] if launcher else []
    command = [sys.executable, *with_launcher, str(ROOT / "train.py"), *arguments]
    return Forked(command, cwd=ROOT, env=environment, **(pipes | settings))


def run(*arguments: str, timeout: float = 300, **settings: Any) -> subprocess.CompletedProcess[str]:
    """The same, once it has ended.

    Raises:
        subprocess.TimeoutExpired: it did not end within `timeout` seconds.
    """
    with start(*arguments, **settings) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
