"""Load of a retrieval server: requests a second and its CPU time, under clients that ask one query after the other."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def server(*arguments: str) -> Iterator[tuple[int, int]]:
    """The process and the port of a server as users start it, on any free port; ended at the end of the block.

    Raises:
        RuntimeError: it does not start; its own line says why.
    """
    command = [sys.executable, "-m", "envs.retrievers.server", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start: {' '.join(command)}")
        try:
            yield process.pid, int(line.rsplit(":", 1)[1].split("/")[0])
        finally:
            process.terminate()


def load(pid: int, port: int, queries: Sequence[str], *, clients: int, requests: int) -> tuple[float, float]:
    """Requests a second and the server's CPU milliseconds a request, after a warm-up request of each client.

    Raises:
        RuntimeError: a request failed.
    """
    own = threading.local()

    def ask(number: int) -> None:
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        body = json.dumps({"queries": [queries[number % len(queries)]], "topk": 3, "return_scores": True})
        own.connection.request("POST", "/retrieve", body)
        response = own.connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            raise RuntimeError(f"a request failed: {response.status}: {text}")

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(ask, range(clients)))
        start, cpu = time.perf_counter(), _cpu_seconds(pid)
        list(pool.map(ask, range(requests)))
        seconds, cpu = time.perf_counter() - start, _cpu_seconds(pid) - cpu
    return requests / seconds, 1000 * cpu / requests


def _cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
