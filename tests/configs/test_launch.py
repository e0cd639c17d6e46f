"""How a process leaves: whole when it is alone, at once when it is one of several ranks and failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import atexit, sys
from configs.launch import leave
atexit.register(print, "torn down")
def main():
    print("working")
    {ending}
leave(main)
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
def test_a_failed_rank_leaves_before_its_process_group_is_torn_down(
    ending: str, rank: str | None, code: int, out: list[str]
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    environment |= {"PYTHONPATH": str(ROOT)} | ({"RANK": rank} if rank else {})
    script = SCRIPT.format(ending=ending)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split("\n")[:-1]) == (code, out)
    assert ("KeyError: 'a bug'" in done.stderr) == ("raise" in ending)
