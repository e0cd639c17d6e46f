"""The GPU section of docs/benchmarks.md and the hours of docs/scale.md, written from the JSON of a GPU check.

    python -m benchmarks.gpu_check.pages [gpu_check.json]

The JSON is kept as docs/benchmarks/gpu_check.json; without an argument both pages are written from what is there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.parts import DEVICE, PARTS, Part, Row
from benchmarks.qwen3_hours import CONFIG, Inputs, hours
from benchmarks.report import ROOT
from common.errors import DataError
from common.files import atomic_write, write_json
from pipeline.loader import load

DOCS = ROOT / "docs"
KEPT = DOCS / "benchmarks" / "gpu_check.json"

Found = Mapping[str, Sequence[Row]]  # rows by part


def rows_of(check: Mapping[str, Any] | None) -> Found:
    """The rows of every part; of a check that there is not, none."""
    return {part["part"]: part["rows"] for part in check["parts"]} if check else {}


def gpu_section(check: Mapping[str, Any] | None) -> str:
    """A table with a line for each part, or that nothing was measured."""
    if check is None:
        return "Not measured yet.\n"
    lines = [f"`make gpu-check` took {check['seconds']:.0f} s ([JSON](benchmarks/gpu_check.json)).\n"]
    lines += ["| measured | figures |", "|---|---|"]
    for part in check["parts"]:
        # Of kernels those that PyTorch picks, and whichever is wrong.
        shown = [row for row in part["rows"] if row.get("kernel", "all") == "all" or not row.get("right", True)]
        cells = [*(_line(PARTS[part["part"]], row) for row in shown)]
        cells += [] if part["status"] == "done" else [f"**{part['status']}**"]
        lines.append(f"| {part['caption']} | {'<br>'.join(cells)} |")
    return "\n".join(lines) + "\n"


def _line(part: Part, row: Row) -> str:
    """A row as its part writes it, or as it is where a figure is missing."""
    try:
        return part.line.format_map(row)
    except (KeyError, TypeError, ValueError):
        return ", ".join(f"{name} {value}" for name, value in row.items() if value is not None)


def inputs_of(found: Found) -> tuple[Inputs, dict[str, str]]:
    """What the hours follow from, and of each measured input where it is from."""
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
    """The inputs with their origins, and the hours of each stage."""
    found = rows_of(check)
    inputs, origins = inputs_of(found)
    by_stage = hours(load(CONFIG).experiment.stages, inputs)
    all_hours = sum(by_stage.values())
    device = found[DEVICE][0]["device"] if found.get(DEVICE) else "A100-80G"
    assumed = {"bandwidth": "data sheet", "share": "assumed", "flops": "assumed: 48 % of the data sheet"}
    origins = assumed | origins
    lines = [
        f"`configs/prorag/qwen3_8b.yaml` takes about {all_hours / 24:.1f} days on {inputs.gpus} {device}.",
        "Retrieval and API calls are not in it. **Hours are arithmetic**, by `python -m benchmarks.qwen3_hours`.\n",
        "| input | value | where it is from |",
        "|---|---|---|",
        f"| `bandwidth` | {inputs.bandwidth / 1e12:.2f} TB/s | {origins['bandwidth']} |",
        f"| `share` of the bandwidth limit that decoding reaches | {inputs.share:.2f} | {origins['share']} |",
        f"| `flops` that training and scoring reach | {inputs.flops / 1e12:.0f} TFLOP/s | {origins['flops']} |",
        "",
        f"| stage | hours on {inputs.gpus} GPUs |",
        "|---|--:|",
        *(f"| `{stage}` | {value:.1f} |" for stage, value in by_stage.items()),
        f"| all | {all_hours:.1f} |",
    ]
    if iteration := found.get("iteration"):
        peak = max(row["peak_gb"] for row in iteration)
        lines.append(f"\nMeasured: an iteration of `rl` with its reward model takes {peak:.0f} GB of one {device}.")
    return "\n".join(lines) + "\n"


def replaced(page: str, section: str, text: str) -> str:
    """The page with this text between the marks of the section.

    Raises:
        DataError: the page has no such marks.
    """
    begin, end = f"<!-- {section}: made by benchmarks.gpu_check.pages -->\n", f"<!-- end of {section} -->"
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
    for page, section, made in (("benchmarks.md", "gpu", gpu_section), ("scale.md", "hours", hours_section)):
        text = replaced((DOCS / page).read_text(), section, made(check))
        with atomic_write(DOCS / page) as file:
            file.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
