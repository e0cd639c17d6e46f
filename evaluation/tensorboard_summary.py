"""TensorBoard summary of experiments side by side: settings beside results, and charts that overlay their curves.

TensorBoard finds out which settings differ between the experiments it sees, as long as none of them declares
a list of its own; so every experiment writes all its settings and no such list.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.errors import DataError
from common.files import write_json
from common.plain_text import one_line
from evaluation.results import read_json, read_manifest

_LARGEST = 2**53  # up to which TensorBoard's floats hold every whole number
_MEASURES = ("em", "f1", "flawed", "unresolved", "searches", "valid_steps")
_LAYOUT = {
    "held-out questions": {
        "EM": ["eval/.+/em$"],
        "F1": ["eval/.+/f1$"],
        "right by a flawed process": ["eval/.+/flawed$"],
        "right without a chain": ["eval/.+/unresolved$"],
        "searches for what is known (OSR)": ["eval/.+/osr$"],
        "untrue statements (USR)": ["eval/.+/usr$"],
        "searches a question": ["eval/.+/searches$"],
        "steps in format": ["eval/.+/valid_steps$"],
    },
    "reinforcement learning": {
        "reward": ["reward$"],
        "reward by name": ["rewards/.+/mean$"],
        "groups without spread": ["frac_reward_zero_std(/process)?$"],
        "entropy": ["entropy$"],
        "KL": ["kl$"],
        "gradient norm": ["grad_norm$"],
        "steps in format": ["format/valid_rate$"],
        "needless searches, untrue statements": ["search/(needless|unfounded)_rate$"],
        "searches an episode": ["search/count$"],
        "tokens an episode": ["completions/mean_length$"],
        "how episodes end": ["stop/.+"],
    },
}


def write(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the events of one experiment and seed, `folder/summary`, unless they are there already.

    One entry of the table of hyperparameters: `settings` beside the final metrics that `folder/results.json` holds,
    named `<stage>/<dataset>/<split>/<measure>`; and the layout of the custom charts, without those that stay empty.
    """
    results = read_json(folder / "results.json")
    metrics = {
        f"{row['stage']}/{row['dataset']}/{row['split']}/{measure}": float(row[measure])
        for row in results["rows"]
        for measure in _MEASURES
        if row[measure] is not None
    }
    shown = {name: _plain(value) for name, value in settings.items()}
    manifests = (read_manifest(folder / place) for place in results["artifacts"].values())
    charts = _charts({*metrics, *(tag for manifest in manifests for tag in manifest.get("metrics") or ())})
    entry = {"settings": shown, "metrics": metrics, "charts": charts}
    place = folder / "summary"
    content = place / "summary.json"
    with suppress(DataError):  # it is missing or damaged: it is written again
        if read_json(content) == entry:
            return
    from torch.utils.tensorboard import SummaryWriter  # takes seconds to import
    from torch.utils.tensorboard.summary import hparams

    shutil.rmtree(place, ignore_errors=True)
    with SummaryWriter(str(place)) as writer:
        _, start, end = hparams(shown, metrics)
        for summary in (start, end):
            writer._get_file_writer().add_summary(summary)
        for name, value in metrics.items():
            writer.add_scalar(name, value)
        writer.add_custom_scalars(
            {title: {name: ["Multiline", tags] for name, tags in part.items()} for title, part in charts.items()}
        )
    write_json(content, entry)


def _charts(logged: Collection[str]) -> dict[str, dict[str, list[str]]]:
    """The charts of the layout that have one of the `logged` tags."""
    found = {
        title: {
            name: patterns
            for name, patterns in part.items()
            if any(re.match(pattern, tag) for pattern in patterns for tag in logged)
        }
        for title, part in _LAYOUT.items()
    }
    return {title: part for title, part in found.items() if part}


def _plain(value: object) -> bool | int | float | str:
    """A setting as TensorBoard and JSON can hold it: infinity, and a number too large to be exact there, as text."""
    if isinstance(value, bool | int | float) and abs(value) <= _LARGEST:
        return value
    return one_line(str(value))
