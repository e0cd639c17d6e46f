"""What is printed and logged: no text of others acts on the terminal, and no stream ends the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import DataError
from common.terminal import error_line, print_error, say

ROOT = Path(__file__).parents[2]
SCRIPT = """
import logging
from common.terminal import prepare_terminal, say
prepare_terminal()
logging.getLogger("judge").warning("invalid reply %s", "\\x1b[2J\\r")
say("caf\\u00e9 \\x1b[2J")
print("caf\\u00e9")
"""


def test_an_error_is_one_visible_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(DataError("rows.jsonl:3: \x1b[31mbad\x1b[0m\n  second line\r"))
    assert capsys.readouterr().err == "error: rows.jsonl:3: \\x1b[31mbad\\x1b[0m second line\\r\n"
    assert error_line("two  spaces.txt") == "error: two  spaces.txt"
    say("a\x1bb")
    assert capsys.readouterr().out == "a\\x1bb\n"


def test_logs_and_any_encoding_stay_visible_text() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == "invalid reply \\x1b[2J\\r\n"
    assert done.stdout == "caf\\xe9 \\x1b[2J\ncaf\\xe9\n"


def test_closed_streams_are_no_error() -> None:
    command = f"exec {sys.executable} -c '{SCRIPT}' >&- 2>&-"
    assert subprocess.run(command, shell=True, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode == 0
