"""What all tests share: one run of every stage, the folder of real data, the count of tests that went without it."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

# The same bits need the same number of threads, here and in the processes that tests start. Before torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

import train
from tests import micro
from tests.lives import moments
from tests.micro import Quickstart

NO_DATA = "RAG_DATA is not set"
NO_ENGINE = "no vLLM: make engine"
NO_PEERS = "no TRL: make peers"
NO_BROWSER = "no Chromium: apt install chromium"
CHROMIUM = shutil.which("chromium") if find_spec("playwright") else None
TESTS = Path(__file__).parent
ENGINE = TESTS.parent / ".engine/bin/python"
PEERS = TESTS.parent / ".peers"

# The same examples every time, however slow the machine.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Quickstart:
    """One unbroken run for all tests that need one; they may add experiments to its store."""
    output = tmp_path_factory.mktemp("quickstart") / "runs"
    with moments() as counted:
        assert micro.chain(output) == 0
    return Quickstart(output, counted)


@pytest.fixture(scope="module")
def without_reports() -> Iterator[None]:
    """Runs of `train.py` in this process write which artifacts they are made of, and no pages, which take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.write_report", train.record)
        patch.setattr("evaluation.report.failure_page.write_failure_page", lambda folder: None)
        yield


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real questions and passages; skips the test where there is none."""
    root = os.environ.get("RAG_DATA")
    if not root:
        pytest.skip(NO_DATA)
    if not Path(root).is_dir():
        pytest.fail(f"RAG_DATA names {root}, which is no folder")
    return Path(root)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs first, so that no worker ends with minutes of them; what needs what there is not is skipped.

    Files whose libraries leave threads behind come last: a process that is forked beside such threads may hang.
    """
    threads = {item.path for item in items if item.get_closest_marker("threads")}
    items.sort(key=lambda item: (item.path in threads, item.path.parent != TESTS))
    missing = {
        "browser": None if CHROMIUM else NO_BROWSER,
        "data": None if os.environ.get("RAG_DATA") else NO_DATA,
        "engine": None if ENGINE.exists() else NO_ENGINE,
        "peers": None if PEERS.exists() else NO_PEERS,
        "gpu": None if torch.cuda.is_available() else "no CUDA device",
    }
    for item in items:
        for mark, reason in missing.items():
            if reason and item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """What was imported stays: every stage collects its garbage, and need not look for it there."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much was not tested, so that a green run without data or engine does not look like one with it."""
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    sources = (
        ("real data", NO_DATA),
        ("the real engine", NO_ENGINE),
        ("peers", NO_PEERS),
        ("a real browser", NO_BROWSER),
    )
    for what, missing in sources:
        if skipped := sum(missing in reason for reason in reasons):
            terminalreporter.write_line(f"{skipped} tests of {what} skipped: {missing}", yellow=True)
