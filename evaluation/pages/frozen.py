"""Frozen results: the one JSON shape that results are kept in without their runs, in a file or a folder of several.

`title`, `question`, `command`, `machine`, `versions`, `notes`, `figures`, `baseline` and `names` (a page's name of each
arm, by its id; of each step ranking, by its experiment) say what was asked, how it was run, and what a page shows. The
rest are lists, which the files of a folder have together:

- `arms`: of each evaluation and seed its `arm` (an id), `experiment`, `stage`, the `sources` of the code,
  the `warm_up` (the first policy that it came from, by arm) and `costs` (`evaluation.policy_ancestry`), None where
  unknown.
- `rows`: its results on each `dataset` and `split`, with `values`, every question's by measure, where they were kept;
  `questions`: by seed, `dataset` and `split`, hashes in the order of these values.
- `stopping`: its results by number of `hops`; `types`: by `type` of question, where the dataset knows several.
- `curves`: of each arm's policy and seed the points of its learning curve, by sampled `tokens`, and what its credit
  taught `early` (`evaluation.pages.training_curves`). Results that were frozen earlier lack this or `types`.
- `rankings`: as in `evaluation.steps.rankings`; `stages`: seconds, costs and metrics of every stage; `commits`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import DataError
from common.files import atomic_write
from evaluation.results import read_json

SCHEMA = "frozen/1"
LISTS = ("commits", "arms", "rows", "questions", "stopping", "rankings", "stages", "curves", "types")
_KEYS = {"title", "question", "command", "machine", "versions", "notes", "figures", "baseline", *LISTS[:-2]}
_SHORT = re.compile(r"\[\n\s*([^\[\]{}]*?)\n\s*\]")  # no string in JSON has a line break

Frozen = Mapping[str, Any]


def read(path: Path) -> dict[str, Any]:
    """Contents of a file, or of the files of a folder together, in the order of their seeds.

    Raises:
        DataError: a file is malformed or was not made by freezing; two hold the same seed of an arm, or files have
            different baselines.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    parts = sorted(map(_read, files), key=lambda part: min((arm["seed"] for arm in part["arms"]), default=0))
    whole = parts[0] | {name: [entry for part in parts for entry in part.get(name, ())] for name in LISTS}
    if len({part["baseline"] for part in parts}) > 1:
        raise DataError(f"the files in {path} have different baselines: freeze all with the same")
    seen: set[tuple[str, int]] = set()
    for arm in whole["arms"]:
        if (place := (arm["arm"], arm["seed"])) in seen:
            raise DataError(f"{path} holds {place[0]} of seed {place[1]} twice: remove one of the files")
        seen.add(place)
    names = {arm: name for part in parts for arm, name in part.get("names", {}).items()}
    return whole | {"machine": ", ".join(dict.fromkeys(part["machine"] for part in parts)), "names": names}


def _read(path: Path) -> dict[str, Any]:
    part = read_json(path)
    lacking = "schema" if part.get("schema") != SCHEMA else min(_KEYS - part.keys(), default=None)
    if lacking:
        raise DataError(f"{path} lacks {lacking!r} of {SCHEMA}: make it with python -m evaluation.pages.freeze")
    return part


def write(path: Path, frozen: Frozen) -> None:
    """Write frozen results with every list of figures on one line, so that a version system shows what changed."""
    text = json.dumps({"schema": SCHEMA} | dict(frozen), indent=1, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as file:
        file.write(_SHORT.sub(lambda match: "[" + re.sub(r"\s*\n\s*", " ", match[1]) + "]", text) + "\n")
