"""Ways of doing one thing that cannot share a process: each in its own, taking turns, one at work at a time.

vLLM binds the threads of its process, and a peer's packages are not installed beside the suite's. So a benchmark
starts a process a way, which loads what it needs, waits on standard input for its turn, does the work that the line
describes, and answers with a line of figures. Messages are JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from benchmarks.report import medians

ROOT = Path(__file__).parents[1]

Message = dict[str, Any]


class WayFailed(RuntimeError):
    """The process of a way ended without an answer; says which and its last lines."""


class Way:
    """A running way.

    Args:
        name: what the table calls it.
        module: run with `python -m`; it answers through `Turns`.
        settings: passed on to it as JSON, its only argument.
        packages: a folder of packages that only this way may import.
    """

    def __init__(self, name: str, module: str, settings: Mapping[str, Any], packages: Path | None = None) -> None:
        self.name = name
        path = os.pathsep.join(map(str, filter(None, [packages, ROOT, os.environ.get("PYTHONPATH")])))
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the way)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(dict(settings))],
            env=os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def take(self, work: Message) -> Message:
        """Do one piece of work.

        Raises:
            WayFailed: the process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(work) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._said.seek(0)
            raise WayFailed(f"{self.name} ended: {' | '.join(self._said.read().strip().splitlines()[-5:])}")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process: it has no more turns."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()


@contextmanager
def all_open(ways: Iterable[Way]) -> Iterator[dict[str, Way]]:
    """The ways by name; all of them are ended at the end of the block."""
    with ExitStack() as leaving:
        yield {way.name: leaving.enter_context(way) for way in ways}


def alternate(ways: Mapping[str, Way], work: Message, repeats: int) -> dict[str, Message]:
    """The medians of each way's figures over `repeats` turns; ways take turns, after one each that does not count."""
    taken: dict[str, list[Message]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            figures = way.take(work)
            if repeat:
                taken[name].append(figures)
    return {name: medians(rows) for name, rows in taken.items()}


class Turns:
    """A way's own end, in its process. What libraries print goes to standard error."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def wait(self) -> Message | None:
        """The next piece of work; None where there is no more."""
        line = sys.stdin.readline()
        return json.loads(line) if line else None

    def answer(self, figures: Message) -> None:
        """Send the figures of what was done."""
        self._answers.write(json.dumps(figures) + "\n")
        self._answers.flush()

    def serve(self, run: Callable[[Message], Message]) -> None:
        """Answer each piece of work with what `run` returns."""
        while (work := self.wait()) is not None:
            self.answer(run(work))
