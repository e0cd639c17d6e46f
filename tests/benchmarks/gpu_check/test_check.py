"""The GPU check: every part has its process and its limit, what it found is kept however it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu_check.__main__ import check, main
from benchmarks.gpu_check.parts import DEVICE, Part
from benchmarks.report import ROOT

MADE = "tests.benchmarks.gpu_check.made_parts"


def part(function: str, limit_s: float = 60) -> Part:
    return Part(f"{MADE}:{function}", limit_s, function)


def test_a_part_that_breaks_or_hangs_keeps_its_rows_and_the_next_one_runs(tmp_path: Path) -> None:
    parts = {"breaks": part("breaks"), "hangs": part("hangs", limit_s=3), "good": part("good")}
    found = check(parts, tiny=False, limit_s=100, json_file=tmp_path / "out.json")
    assert [row["status"] for row in found] == ["failed", "over time", "done"]
    assert [row["rows"] for row in found] == [[{"row": 1}], [{"row": 1}], [{"device": "cuda", "error": "NaN"}]]
    assert "no such kernel" in found[0]["said"][-1]
    assert json.loads((tmp_path / "out.json").read_text())["parts"] == found


def test_what_exceeds_the_limit_of_all_is_not_begun(tmp_path: Path) -> None:
    [row] = check({"good": part("good")}, tiny=True, limit_s=5, json_file=tmp_path / "out.json")
    assert (row["status"], row["rows"]) == ("not begun", [])


def test_without_a_device_nothing_else_is_tried(tmp_path: Path) -> None:
    parts = {DEVICE: part("breaks"), "good": part("good")}
    assert len(check(parts, tiny=True, limit_s=100, json_file=tmp_path / "out.json")) == 1


def test_a_check_that_is_ended_writes_what_it_has(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    parts = f"{{'good': Part('{MADE}:good', 60, ''), 'hangs': Part('{MADE}:hangs', 60, '')}}"
    code = (
        "from pathlib import Path; from benchmarks.gpu_check.__main__ import Part, check; "
        f"check({parts}, tiny=True, limit_s=100, json_file=Path({str(out)!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    while process.poll() is None and not out.exists():
        time.sleep(0.1)
    time.sleep(2)
    process.terminate()
    assert process.wait(timeout=60) == 0
    assert [row["status"] for row in json.loads(out.read_text())["parts"]] == ["done", "ended"]


@pytest.mark.slow
def test_the_command_finds_the_tests_of_a_gpu_and_shards_on_one_rank(tmp_path: Path) -> None:
    """Both need a process of their own; the other parts: test_parts.py."""
    out = tmp_path / "out.json"
    assert main(["--tiny", "--parts", "device", "tests", "FSDP2", "--json", str(out)]) == 0
    _, tests, [sharded] = (row["rows"] for row in json.loads(out.read_text())["parts"])
    found = {row["file"]: row["found"] for row in tests}
    assert found["tests/modules/decoder/test_row_attention.py"] == 10
    assert all(row["not read"] == row["failed"] == 0 for row in tests)
    assert sharded["dtype"] == "float32"
    assert 0.3e-6 < sharded["moved"] < 1e-5
