"""Pages made from a GPU check: as they stand, and what a measured input changes."""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu_check.pages import DOCS, KEPT, gpu_section, hours_section, inputs_of, main, replaced
from benchmarks.gpu_check.parts import PARTS
from benchmarks.qwen3_hours import Inputs
from common.errors import DataError

DECODED = [
    {"rows": rows, "shape": "1.7B", "gb_per_s": 3000.0, "share": share} for rows, share in ((16, 0.5), (64, 0.4))
]
KERNELS = [
    {"columns": 33, "kernels": kernel, "largest_error": error, "right": right, "us": 9.0}
    for kernel, error, right in (("all", 0.004, True), ("efficient", 0.005, True), ("cuDNN", 1.25, False))
]
UPDATE = [{"shape": "1.7B", "tflops_per_s": 300.0, "mfu": None, "of_matmul": 0.4}]
ROWS = {"kernels": KERNELS, "decoding": DECODED, "update": UPDATE}
CHECK = {
    "seconds": 300.4,
    "tiny": False,
    "parts": [{"part": name, "caption": PARTS[name].caption, "status": "done", "rows": ROWS[name]} for name in ROWS],
}


def test_both_pages_are_what_the_kept_check_makes() -> None:
    check = json.loads(KEPT.read_text()) if KEPT.exists() else None
    for page, section, made in (("benchmarks.md", "gpu", gpu_section), ("scale.md", "hours", hours_section)):
        text = (DOCS / page).read_text()
        assert replaced(text, section, made(check)) == text, "python -m benchmarks.gpu_check.pages"


def test_measured_inputs_take_the_place_of_assumed_ones() -> None:
    assert inputs_of({}) == (Inputs(), {})
    inputs, _ = inputs_of(ROWS)
    assert (inputs.bandwidth, inputs.share, inputs.flops) == (3e12, 0.5, 3e14)
    larger = {"rows": 16, "shape": "8B", "gb_per_s": 3000.0, "share": 0.6}
    assert inputs_of(ROWS | {"decoding 8B": [larger]})[0].share == 0.6
    assert "| `share` of the bandwidth limit that decoding reaches | 0.50 | measured, 1.7B" in hours_section(CHECK)


def test_a_part_has_a_table_and_says_how_it_ended() -> None:
    late = CHECK["parts"][1] | {"status": "over time"}
    section = gpu_section(CHECK | {"parts": [CHECK["parts"][0], late, CHECK["parts"][2] | {"rows": []}]})
    assert "`make gpu-check` took 300 s" in section
    assert "(**over time**):\n\n| rows | shape | gb_per_s | share |" in section
    assert "| 33 | cuDNN | 1.25 | False | 9 |" in section
    assert "efficient" not in section, "kernels that are right and that PyTorch does not pick"
    assert "whole weights.\n" in section, "a part without rows"


def test_a_tiny_check_and_a_page_without_marks_are_refused(tmp_path) -> None:
    path = tmp_path / "check.json"
    path.write_text(json.dumps(CHECK | {"tiny": True}))
    with pytest.raises(DataError, match=r"check\.json is of a check at the tiny size"):
        main([str(path)])
    with pytest.raises(DataError, match="put them where the section belongs"):
        replaced("a page", "gpu", "text")
