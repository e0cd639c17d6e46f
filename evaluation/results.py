"""Reading finished runs: rows of results, predictions, manifests, and where they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.contents import check_sizes
from common.errors import DataError
from common.manifests import MANIFEST, load_manifest
from datamodules.records import read_rows
from evaluation.scoring import OPTIONAL, RATES

KEYS = (
    *("experiment", "seed", "stage", "dataset", "split", "n"),
    *("em", "em_low", "em_high", "f1", "f1_low", "f1_high"),
    *("cover", "flawed", "unresolved", "searches", "valid_steps", "recall", "seconds"),
)
_AGAIN = "remove it and run again what wrote it"


@dataclass(frozen=True, slots=True)
class Arm:
    """An evaluation of an experiment, with its artifact folder for each seed; `name` is `<run>:<stage>`."""

    name: str
    experiment: str
    stage: str
    artifacts: dict[int, Path]


def result_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with exactly the keys of a `results.json`; missing values are None."""
    return {key: row.get(key) for key in KEYS}


def shown_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a report's first table: `result_row` with rates of search, optional measures and tokens."""
    return result_row(row) | {name: row.get(name) for name in (*RATES, *OPTIONAL, "tokens", "read_tokens")}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, NaN read as None.

    Raises:
        DataError: the file is missing or malformed.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}; {_AGAIN}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path} holds a {type(value).__name__}, not an object; {_AGAIN}")
    return value


def read_manifest(artifact: Path) -> dict[str, Any]:
    """An artifact's `manifest.json`, empty where there is none.

    Raises:
        DataError: it is damaged.
    """
    return load_manifest(artifact) if (artifact / MANIFEST).exists() else {}


def read_evaluation(artifact: Path) -> dict[str, Any]:
    """An evaluation's own `results.json`: rows, groups, notes.

    Raises:
        DataError: it is malformed, or a row lacks dataset, split or n.
    """
    path = artifact / "data" / "results.json"
    results = {"rows": [], "groups": [], "notes": {}} | read_json(path)
    for row in (*results["rows"], *results["groups"]):
        for key in ("dataset", "split", "n"):
            if key not in row:
                raise DataError(f"{path}: a row lacks {key!r}: {json.dumps(row)}")
    return results


def by_dataset(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows by `<dataset>/<split>`, in order of appearance."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        parts.setdefault(f"{row['dataset']}/{row['split']}", []).append(row)
    return parts


def predictions(artifact: Path, dataset: str, split: str) -> Iterator[dict[str, Any]]:
    """The rows of an evaluation's predictions file, one a question, in order."""
    return read_rows(artifact / "data" / f"predictions-{dataset}-{split}.jsonl", None)


def seed_folders(experiment: Path) -> dict[int, Path]:
    """The folders of an experiment by seed, in order of the seeds."""
    folders = {int(path.name[4:]): path for path in experiment.glob("seed*") if path.name[4:].isdigit()}
    return dict(sorted(folders.items()))


def find_arms(run: str) -> list[Arm]:
    """The evaluations of `runs/<experiment>`, `runs/<experiment>/seed<k>` or either with `:<stage>`.

    `runs/` may be left out.

    Raises:
        DataError: there is no such run or stage, a seed is unfinished, or an artifact is damaged.
    """
    name, folders = run_folders(run)
    place, _, stage = run.partition(":")
    artifacts: dict[str, dict[int, Path]] = {}
    for seed, path in folders.items():
        results = read_results(path)
        for evaluation in dict.fromkeys(row["stage"] for row in results["rows"]):
            artifacts.setdefault(evaluation, {})[seed] = _whole(path / results["artifacts"][evaluation])
    chosen = [evaluation for evaluation in artifacts if stage in ("", evaluation)]
    if not chosen:
        what = f"no evaluation {stage!r}" if stage else "no finished evaluation"
        raise DataError(f"{place} has {what}; it has: {', '.join(artifacts) or 'none'}")
    experiment = name.split("/")[0]
    return [Arm(f"{name}:{evaluation}", experiment, evaluation, artifacts[evaluation]) for evaluation in chosen]


def find_stages(run: str) -> Iterator[tuple[str, int, str, Path]]:
    """Experiment, seed, stage and artifact folder of every stage of a run.

    Raises:
        DataError: as `find_arms`.
    """
    name, folders = run_folders(run)
    for seed, path in folders.items():
        for stage, artifact in read_results(path)["artifacts"].items():
            yield name.split("/")[0], seed, stage, _whole(path / artifact)


def display_names(run: str) -> dict[tuple[str, str], str]:
    """Display names of stages from an experiment's file, by experiment and stage; empty in runs of earlier versions."""
    name, folders = run_folders(run)
    files = [path for folder in folders.values() if (path := folder / "experiment.json").exists()]
    names = {stage: shown for path in files for stage, shown in read_json(path).get("names", {}).items()}
    return {(name.split("/")[0], stage): shown for stage, shown in names.items()}


def _whole(artifact: Path) -> Path:
    """An artifact, whose files are checked where it has a manifest.

    Raises:
        DataError: a file is missing or damaged.
    """
    artifact = artifact.resolve()
    if (artifact / MANIFEST).exists():
        check_sizes(artifact)
    return artifact


def read_results(folder: Path) -> dict[str, Any]:
    """The `results.json` of `runs/<experiment>/seed<k>`: rows, and artifact folders by stage.

    Raises:
        DataError: the run is unfinished, or the file is malformed.
    """
    path = folder / "results.json"
    if not path.exists():
        raise DataError(f"{folder} is unfinished, it has no results.json: run its experiment again to complete it")
    results = read_json(path)
    rows, artifacts = results.get("rows"), results.get("artifacts")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row.keys() >= {*KEYS} for row in rows):
        raise DataError(f"{path} has no rows of results; {_AGAIN}")
    if not isinstance(artifacts, dict) or not {row["stage"] for row in rows} <= artifacts.keys():
        raise DataError(f"{path} has no artifacts of its rows; {_AGAIN}")
    return results


def run_folders(run: str) -> tuple[str, dict[int, Path]]:
    """The name of a run, `<experiment>` or `<experiment>/seed<k>`, and its folders by seed.

    Raises:
        DataError: there is no such folder.
    """
    place = run.partition(":")[0]
    folder = next((path for path in (Path(place), Path("runs") / place) if path.is_dir()), None)
    if folder is None:
        raise DataError(f"no run at {place}: give runs/<experiment>, runs/<experiment>/seed<k> or <experiment>:<stage>")
    folder = folder.resolve()
    one_seed = folder.name in {f"seed{seed}" for seed in seed_folders(folder.parent)}
    experiment = folder.parent.name if one_seed else folder.name
    name = f"{experiment}/{folder.name}" if one_seed else experiment
    return name, {int(folder.name[4:]): folder} if one_seed else seed_folders(folder)
