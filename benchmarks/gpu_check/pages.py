"""The GPU section of docs/benchmarks.md and the hours of docs/scale.md, written from the JSON of a GPU check.

    python -m benchmarks.gpu_check.pages [runs/gpu_check.json]

The JSON is kept as docs/benchmarks/gpu_check.json; without an argument both pages are written from what is there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.parts import DEVICE, Row
from benchmarks.qwen3_hours import Inputs, section
from benchmarks.report import ROOT, table
from common.errors import DataError
from common.files import atomic_write, write_json

DOCS = ROOT / "docs"
KEPT = DOCS / "benchmarks" / "gpu_check.json"

Found = Mapping[str, Sequence[Row]]  # rows by part


def rows_of(check: Mapping[str, Any] | None) -> Found:
    """The rows of every part; of a check that there is not, none."""
    return {part["part"]: part["rows"] for part in check["parts"]} if check else {}


def gpu_section(check: Mapping[str, Any] | None) -> str:
    """A table for each part, or that nothing was measured."""
    if check is None:
        return "Not measured yet.\n"
    lines = [f"`make gpu-check` took {check['seconds']:.0f} s ([JSON](benchmarks/gpu_check.json))."]
    for part in check["parts"]:
        # Of kernels those that PyTorch picks, and whichever is wrong.
        shown = [row for row in part["rows"] if row.get("kernels", "all") == "all" or not row.get("right", True)]
        ended = "" if part["status"] == "done" else f" (**{part['status']}**)"
        lines += [f"\n{part['caption']}{ended}:\n", table(shown)] if shown else [f"\n{part['caption']}{ended}."]
    return "\n".join(lines) + "\n"


def inputs_of(found: Found) -> tuple[Inputs, dict[str, str]]:
    """Inputs of the hours, and the origin of each measured one."""
    inputs, origins = Inputs(), dict[str, str]()
    decoded = [row for part in ("decoding", "decoding 8B") for row in found.get(part, ()) if row["rows"] == 16]
    if decoded:
        row = decoded[-1]  # of the largest model
        inputs = replace(inputs, bandwidth=row["gb_per_s"] * 1e9, share=row["share"])
        origins = {"bandwidth": "measured, by a copy", "share": f"measured, {row['shape']} with 16 rows"}
    if updates := found.get("update"):
        inputs = replace(inputs, flops=updates[-1]["tflops_per_s"] * 1e12)
        origins["flops"] = f"measured, {updates[-1]['shape']}"
    return inputs, origins


def hours_section(check: Mapping[str, Any] | None) -> str:
    """Inputs, hours and the measured memory of an iteration."""
    found = rows_of(check)
    inputs, measured = inputs_of(found)
    sheet = "data sheet"
    assumed = {"bandwidth": sheet, "flops": f"assumed: 48 % of the {sheet}", "float32_flops": sheet}
    device = found[DEVICE][0]["device"] if found.get(DEVICE) else "A100-80G"
    text = section(inputs, assumed | measured, device)
    if iteration := found.get("iteration"):
        peak = max(row["peak_gb"] for row in iteration)
        text += f"\nMeasured: an iteration of `rl` with its reward model takes {peak:.0f} GB of one {device}.\n"
    return text


def replaced(page: str, name: str, text: str) -> str:
    """The page with this text between the marks of the section.

    Raises:
        DataError: the page has no such marks.
    """
    begin, end = f"<!-- {name}: made by benchmarks.gpu_check.pages -->\n", f"<!-- end of {name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise DataError(f"a page lacks the lines {begin.strip()} and {end}; put them where the section belongs")
    return before + begin + "\n" + text + "\n" + end + after


def main(arguments: Sequence[str]) -> None:
    """Keep the check's JSON and write both pages.

    Raises:
        DataError: the check was a tiny one.
    """
    if arguments:
        given = json.loads(Path(arguments[0]).read_text())
        if given["tiny"]:
            raise DataError(f"{arguments[0]} is of a check at the tiny size: give one of `make gpu-check`")
        write_json(KEPT, given)
    check = json.loads(KEPT.read_text()) if KEPT.exists() else None
    for page, name, made in (("benchmarks.md", "gpu", gpu_section), ("scale.md", "hours", hours_section)):
        text = replaced((DOCS / page).read_text(), name, made(check))
        with atomic_write(DOCS / page) as file:
            file.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
