"""A retrieval server under load: threads that ask one query after the other, as the episodes of a rollout do."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Load:
    """What a server did: requests a second, and its own processor time a request, in milliseconds."""

    requests_per_s: float
    cpu_ms: float


class ServerProcess:
    """A running `python -m envs.retrievers.server …`."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process, self.port = process, port

    def cpu_seconds(self) -> float:
        """Processor time of all its threads so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(*arguments: str) -> Iterator[ServerProcess]:
    """The server as users start it, on any free port; ended at the end of the block.

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
            yield ServerProcess(process, int(line.rsplit(":", 1)[1].split("/")[0]))
        finally:
            process.terminate()


def load(target: ServerProcess, queries: Sequence[str], *, clients: int, requests: int) -> Load:
    """Let `clients` ask `requests` times in all, a query each time, after one request each that is not counted.

    Raises:
        RuntimeError: a request failed.
    """
    ready, failures = threading.Barrier(clients + 1), []

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=600)
        share = [queries[i % len(queries)] for i in range(number, requests, clients)]
        try:
            _ask(connection, queries[number % len(queries)])
            ready.wait()
            for query in share:
                _ask(connection, query)
        except (OSError, RuntimeError, threading.BrokenBarrierError) as error:
            failures.append(error)
            ready.abort()
        finally:
            connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        ready.wait()
    except threading.BrokenBarrierError:
        raise RuntimeError(f"a request failed: {failures}") from None
    start, cpu = time.perf_counter(), target.cpu_seconds()
    for thread in threads:
        thread.join()
    seconds, cpu = time.perf_counter() - start, target.cpu_seconds() - cpu
    if failures:
        raise RuntimeError(f"a request failed: {failures[0]}")
    return Load(requests / seconds, 1000 * cpu / requests)


def _ask(connection: http.client.HTTPConnection, query: str) -> None:
    connection.request("POST", "/retrieve", json.dumps({"queries": [query], "topk": 3, "return_scores": True}))
    response = connection.getresponse()
    body = response.read()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {body.decode()}")
