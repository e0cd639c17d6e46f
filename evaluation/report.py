"""The results of one run of an experiment: its rows, a page to read, and the rows of all its seeds together."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from common.files import atomic_write, write_json
from evaluation.results import predictions, read_evaluation, read_json, result_row, seed_folders
from evaluation.tables import LEGEND, figure, metrics_table, table

Row = dict[str, Any]

_MISSING = "–"
_LONGEST = 300  # characters of a step's text in an example


def write(runs: Path, experiment: str, seed: int, artifacts: Mapping[str, Path]) -> str:
    """Write this seed's `results.json` and `report.md` and the experiment's `results.json`; return the headline table.

    `artifacts` are the artifact folders by stage, in the order they were made; those that evaluate hold
    `data/results.json`. What is written is a function of their content: rows of this seed are replaced, other seeds'
    kept.

    Raises:
        DataError: an evaluation's results are malformed.
    """
    folder = runs / experiment / f"seed{seed}"
    evaluations = {s: read_evaluation(a) for s, a in artifacts.items() if (a / "data" / "results.json").exists()}
    measured, groups = (
        [
            {**row, "experiment": experiment, "seed": seed, "stage": stage}
            for stage, results in evaluations.items()
            for row in results[part]
        ]
        for part in ("rows", "groups")
    )
    notes = {stage: results["notes"] for stage, results in evaluations.items()}
    rows = [result_row(row) for row in measured]
    places = {stage: Path(os.path.relpath(path, folder)).as_posix() for stage, path in artifacts.items()}
    write_json(folder / "results.json", {"rows": rows, "groups": groups, "notes": notes, "artifacts": places})
    with atomic_write(folder / "report.md") as file:
        file.write(_page(f"{experiment}, seed {seed}", measured, groups, notes, artifacts, folder))
    _gather(runs / experiment)
    tables = [f"{name}\n{metrics_table({'stage': 'stage'}, part)}" for name, part in _by_dataset(rows).items()]
    return "\n\n".join([*tables, f"report: {folder / 'report.md'}"])


def _gather(experiment: Path) -> None:
    """Rows of all finished seeds in one file; two seeds that finish at once take turns, so that none is lost."""
    with FileLock(experiment / ".results.lock"):
        finished = [path for f in seed_folders(experiment).values() if (path := f / "results.json").exists()]
        write_json(experiment / "results.json", {"rows": [row for path in finished for row in read_json(path)["rows"]]})


def _page(
    title: str,
    rows: Sequence[Row],
    groups: Sequence[Row],
    notes: Mapping[str, Any],
    artifacts: Mapping[str, Path],
    folder: Path,
) -> str:
    parts = [f"# {title}"]
    parts += [LEGEND if rows else "No stage of this experiment evaluates."]
    for name, part in _by_dataset(rows).items():
        parts += [f"## {name}", metrics_table({"stage": "stage"}, part)]
        parts += _group_tables([row for row in groups if _dataset(row) == name])
    parts += ["## Stages", _stages(artifacts, folder)]
    if made := list(_made(artifacts, notes)):
        parts += ["What they made, or logged last:", "\n".join(made)]
    if guesses := list(_guesses(artifacts)):
        lines = [f"- {stage}: {key} {figure('em', value)}" for stage, key, value in guesses]
        parts += ["## Guessing", "What answers without any search would score, in percent.", "\n".join(lines)]
    if any(notes.values()):
        parts += ["## Settings and endings", *(f"### {stage}\n\n{note_list(note)}" for stage, note in notes.items())]
    if examples := list(_examples(rows, artifacts)):
        parts += ["## Examples", *examples]
    return "\n\n".join(parts) + "\n"


def _stages(artifacts: Mapping[str, Path], folder: Path) -> str:
    """A table of all stages with what they took and, where a stage wrote a page of its own, a link to it."""
    rows: list[list[str]] = []
    for stage, artifact in artifacts.items():
        manifest, own = _manifest(artifact), artifact / "report.md"
        link = f"[report]({Path(os.path.relpath(own, folder)).as_posix()})" if own.exists() else ""
        rows.append([stage, artifact.name, manifest.get("kind", ""), link, figure("seconds", manifest.get("seconds"))])
    return table(["stage", "artifact", "kind", "page", "seconds"], rows, labels=4)


def _made(artifacts: Mapping[str, Path], evaluations: Collection[str]) -> Iterator[str]:
    """A line of headline metrics for each stage but evaluations, which have tables of their own."""
    for stage, artifact in artifacts.items():
        metrics = {} if stage in evaluations else _manifest(artifact).get("metrics", {})
        if metrics:
            shown = (f"{name} {_MISSING if value is None else f'{value:.4g}'}" for name, value in metrics.items())
            yield f"- {stage}: {', '.join(shown)}"


def _manifest(artifact: Path) -> dict[str, Any]:
    path = artifact / "manifest.json"
    return read_json(path) if path.exists() else {}


def _dataset(row: Row) -> str:
    return f"{row['dataset']}/{row['split']}"


def _by_dataset(rows: Sequence[Row]) -> dict[str, list[Row]]:
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(_dataset(row), []).append(row)
    return parts


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
    """(stage, name, score) of every baseline that a stage found by guessing."""
    for stage, artifact in artifacts.items():
        for name, score in _manifest(artifact).get("metrics", {}).items():
            if name.startswith("guess"):
                yield stage, name, score


def note_list(notes: Mapping[str, Any], indent: str = "") -> str:
    """Free notes as a Markdown list: an object of plain values on one line, deeper ones nested."""
    lines: list[str] = []
    for key, value in notes.items():
        if isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values()):
            lines += [f"{indent}- {key}:", note_list(value, indent + "  ")]
        else:
            lines.append(f"{indent}- {key}: {_plain(value)}")
    return "\n".join(lines)


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "none"
    return " ".join(value.split()) if isinstance(value, str) else json.dumps(value)


def _examples(rows: Sequence[Row], artifacts: Mapping[str, Path]) -> Iterator[str]:
    """The first episode of each sort, of the last stage that has one."""
    wanted = {
        "Right": lambda row: row["em"] == 1 and not row.get("flawed"),
        "Right by a flawed process": lambda row: row["em"] == 1 and row.get("flawed"),
        "Wrong": lambda row: row["em"] == 0,
    }
    for title, fits in wanted.items():
        for result in reversed(rows):
            episodes = predictions(artifacts[result["stage"]], result["dataset"], result["split"])
            if (found := next(filter(fits, episodes), None)) is not None:
                yield f"### {title} ({result['stage']}, {_dataset(result)})\n\n{_episode(found)}"
                break


def _episode(row: Mapping[str, Any]) -> str:
    """An episode as an indented block, which no text inside it can close."""
    lines = [f"Question: {_clip(row['question'])}", f"Answers:  {_clip(' / '.join(row['answers']))}", ""]
    for number, step in enumerate(row["steps"], 1):
        verdict = "" if step["valid"] else " (invalid)"
        lines.append(f"{number}. {step['kind']}{verdict}: {_clip(step['text'] or step.get('said', ''))}")
        if step["hits"]:
            lines.append(f"   found {', '.join(step['hits'])}")
    lines += ["", f"Prediction: {_clip(row['prediction']) or '(none)'}"]
    lines.append(f"{row['status']}, EM {figure('em', row['em'])}, F1 {figure('f1', row['f1'])}")
    return "\n".join(f"    {line}".rstrip() for line in lines)


def _clip(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[:_LONGEST] + " …"
