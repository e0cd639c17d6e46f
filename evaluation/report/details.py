"""The second page of a run: results with all intervals and by group, what every stage made, how it was evaluated."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.plain_text import one_line
from evaluation.results import by_dataset, read_manifest
from evaluation.tables import LEGEND, MISSING, figure, metrics_table, table

Row = dict[str, Any]


def details_page(
    title: str,
    rows: Sequence[Row],
    groups: Sequence[Row],
    notes: Mapping[str, Any],
    artifacts: Mapping[str, Path],
    folder: Path,
) -> str:
    """The page as Markdown.

    `groups` are the `rows` by group, `hops=2` for example; `notes` the settings and endings of evaluations; links start
    from `folder`.
    """
    parts = [f"# {title}: details", "[Report](report.md)"]
    parts += [LEGEND if rows else "No stage of this experiment evaluates."]
    grouped = by_dataset(groups)
    for name, part in by_dataset(rows).items():
        parts += [
            f"## {one_line(name)}",
            metrics_table({"stage": "stage"}, part),
            *_group_tables(grouped.get(name, [])),
        ]
    parts += ["## Stages", _stages(artifacts, folder)]
    if made := list(_metrics(artifacts, notes)):
        parts += ["Metrics that each stage reported at its end:", "\n".join(made)]
    if guesses := list(_guesses(artifacts)):
        lines = [f"- {stage}: {key} {figure('em', value)}" for stage, key, value in guesses]
        parts += ["## Guessing", "What answers without any search would score, in percent.", "\n".join(lines)]
    if any(notes.values()):
        parts += ["## Settings and endings", *(f"### {stage}\n\n{_note_list(note)}" for stage, note in notes.items())]
    return "\n\n".join(parts) + "\n"


def _stages(artifacts: Mapping[str, Path], folder: Path) -> str:
    """A table of all stages with their seconds and, where a stage wrote a page of its own, a link to it."""
    rows: list[list[str]] = []
    for stage, artifact in artifacts.items():
        manifest, own = read_manifest(artifact), artifact / "report.md"
        link = f"[report]({Path(os.path.relpath(own, folder)).as_posix()})" if own.exists() else ""
        rows.append([stage, artifact.name, manifest.get("kind", ""), link, figure("seconds", manifest.get("seconds"))])
    return table(["stage", "artifact", "kind", "page", "seconds"], rows, labels=4)


def _metrics(artifacts: Mapping[str, Path], evaluations: Collection[str]) -> Iterator[str]:
    """A line of headline metrics for each stage but evaluations, which have tables of their own."""
    for stage, artifact in artifacts.items():
        metrics = {} if stage in evaluations else read_manifest(artifact).get("metrics", {})
        if metrics:
            shown = (f"{name} {MISSING if value is None else f'{value:.4g}'}" for name, value in metrics.items())
            yield f"- {stage}: {', '.join(shown)}"


def _group_tables(groups: Sequence[Row]) -> Iterator[str]:
    """One table for each kind of group (`hops=2` is of the kind hops), its values in order."""
    kinds: dict[str, list[Row]] = {}
    for row in groups:
        kind, _, value = row["group"].partition("=")
        kinds.setdefault(kind, []).append({**row, "group": value})
    for kind, members in kinds.items():
        members.sort(key=lambda row: row["group"].zfill(9) if row["group"].isdigit() else row["group"])
        yield f"### By {kind}"
        yield metrics_table({"group": kind, "stage": "stage"}, members)


def _guesses(artifacts: Mapping[str, Path]) -> Iterator[tuple[str, str, float]]:
    """(stage, name, score) of every baseline that answers by guessing."""
    for stage, artifact in artifacts.items():
        for name, score in read_manifest(artifact).get("metrics", {}).items():
            if name.startswith("guess"):
                yield stage, name, score


def _note_list(notes: Mapping[str, Any], indent: str = "") -> str:
    """Notes as a Markdown list: an object of plain values on one line, deeper ones nested."""
    lines: list[str] = []
    for key, value in notes.items():
        if isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
            lines += [f"{indent}- {key}:", _note_list(value, indent + "  ")]
        else:
            lines.append(f"{indent}- {key}: {_plain(value)}")
    return "\n".join(lines)


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "none"
    return one_line(value) if isinstance(value, str) else json.dumps(value)
