"""The GPU check: runs each part in its own process within its time limit, prints tables and writes one JSON file.

    make gpu-check                                              eight minutes at most on one GPU of 80 GB
    python -m benchmarks.gpu_check --tiny                       the same parts at a tiny size on a CPU
    python -m benchmarks.gpu_check.pages runs/gpu_check.json    docs/benchmarks.md and docs/scale.md from the JSON

A part that fails or takes too long is reported with the rows that it had by then, and the others run all the same. The
JSON is written after each part, and when the check itself is ended. It needs torch, transformers, lightning and peft.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.parts import DEVICE, PARTS, Part, Row
from benchmarks.report import ROOT, machine, table, versions
from common.files import write_json

LIMIT_S = 470.0  # of all parts together


def run_part(name: str, part: Part, limit_s: float, *, tiny: bool) -> Row:
    """Status, seconds and rows of a part, run in a process that is killed at its limit.

    The status is `done`, `failed` or `over time`; an ended check ends its part too, as `ended`.
    """
    start, status = time.perf_counter(), "ended"
    with tempfile.TemporaryDirectory() as folder:
        rows, said = Path(folder) / "rows", Path(folder) / "said"
        rows.touch()
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu_check.parts",
            part.function,
            "tiny" if tiny else "full",
            str(rows),
        ]
        environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        with open(said, "w") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        found: Row = {"part": name, "caption": part.caption}
        try:
            status = "done" if process.wait(timeout=limit_s) == 0 else "failed"
        except subprocess.TimeoutExpired:
            status = "over time"
        except SystemExit:  # the check was ended: what there is of this part is kept
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        found |= {"status": status, "seconds": round(time.perf_counter() - start, 1), "limit_s": round(limit_s)}
        if status != "done":
            found["said"] = said.read_text(errors="replace").strip().splitlines()[-12:]
        whole_lines = [line for line in rows.read_text().splitlines(keepends=True) if line.endswith("\n")]
        # NaN and infinity, which a wrong kernel may give, are no JSON: they become text.
        return found | {"rows": [json.loads(line, parse_constant=str) for line in whole_lines]}


def check(parts: Mapping[str, Part], *, tiny: bool, limit_s: float, json_file: Path) -> list[Row]:
    """Run the parts one after the other as far as the limit of all allows; the JSON has what there is after each."""
    start, found = time.perf_counter(), list[Row]()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for name, part in parts.items():
        left = limit_s - (time.perf_counter() - start)
        if left < 10:
            row: Row = {"part": name, "caption": part.caption, "status": "not begun", "seconds": 0.0, "rows": []}
        else:
            row = run_part(name, part, left if tiny else min(left, part.limit_s), tiny=tiny)  # a CPU may be busy
        found.append(row)
        print(f"{name}: {row['status']} in {row['seconds']:.0f} s, {len(row['rows'])} rows", flush=True)
        facts: dict[str, Any] = {"tiny": tiny, "seconds": round(time.perf_counter() - start, 1)}
        write_json(json_file, {"machine": machine(), "versions": versions(), **facts, "parts": found})
        if row["status"] == "ended" or (name == DEVICE and row["status"] != "done"):
            break  # without a device no other part can run
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; 0 where all parts are done, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--tiny", action="store_true", help="at a tiny size on a CPU")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of all parts together")
    parser.add_argument("--json", type=Path, default=Path("runs/gpu_check.json"), help="where the JSON is written")
    options = parser.parse_args(arguments)
    parts = {name: PARTS[name] for name in options.parts}
    found = check(parts, tiny=options.tiny, limit_s=options.limit, json_file=options.json)
    for row in found:
        print(f"\n{row['caption']} ({row['part']}, {row['status']})", *row.get("said", ()), sep="\n")
        if row["rows"]:
            print(f"\n{table(row['rows'])}")
    return 0 if [row["status"] for row in found] == ["done"] * len(parts) else 1


if __name__ == "__main__":
    sys.exit(main())
