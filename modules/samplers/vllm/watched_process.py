"""A server that ends with the process that started it, however that one ends.

`python watched_process.py FOLDER COMMAND …` stands between the two. Its standard input is a pipe that the starting
process holds open: when that process is gone, killed or not, the pipe closes. The server and all processes that it has
started are then killed, and its folder is removed. This file needs the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

_STOP = b"."
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class WatchedProcess:
    """A command that runs as long as this object lives, and no longer than this process does.

    Args:
        command: the program and its arguments.
        folder: holds its files; removed where this process is gone without having stopped it.
        log: a file for what it prints.
        environment: variables added to this process's own.
    """

    def __init__(self, command: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        with open(log, "wb") as output:
            self._watcher = subprocess.Popen(
                [sys.executable, __file__, str(folder), *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C reaches the process that started it, which then ends it
            )
        self.stop = weakref.finalize(self, _stop, self._watcher)

    @property
    def ended(self) -> bool:
        """Whether it runs no longer."""
        return self._watcher.poll() is not None


def _stop(watcher: subprocess.Popen[bytes]) -> None:
    assert watcher.stdin is not None
    with contextlib.suppress(OSError):  # it has ended
        watcher.stdin.write(_STOP)
        watcher.stdin.close()
    watcher.wait()


def _end_with_watcher() -> None:
    """Have the kernel kill the server, though not what that has started, when this process is killed (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(folder: str, *command: str) -> int:
    """Run the command in a group of its own until it ends, or standard input does; then kill what is left of it."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=_end_with_watcher)
    while server.poll() is None and not select.select([sys.stdin], [], [], 0.2)[0]:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    code = server.wait()
    if select.select([sys.stdin], [], [], 0)[0] and os.read(0, 1) != _STOP:
        shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
