"""A run as its page reads it, whatever its state: finished, half-finished, with a stage that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from common.contents import damages
from common.errors import DataError
from datamodules.records import read_rows
from evaluation.report.view_checks import check, check_episode, check_passage, check_results
from evaluation.report.view_text import Row
from evaluation.results import read_evaluation, read_json, read_manifest

State = Literal["finished", "failed", "not finished", "not begun"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a run, with its artifact folder.

    `error` is why it failed; `otherwise` how one that was reused had been made, such as by other code.
    """

    name: str
    folder: Path
    state: State
    manifest: Mapping[str, Any]
    error: str = ""
    otherwise: str = ""

    @property
    def told(self) -> str:
        """Its state in words."""
        if self.otherwise:
            return f"{self.state}, made {self.otherwise}"
        return f"failed: {self.error}" if self.state == "failed" else self.state


@dataclass(frozen=True, slots=True)
class Run:
    """An experiment of one seed.

    Attributes:
        name: `<experiment>/seed<k>`, behind its output folder where several runs on a page have the same.
        folder: where its pages are.
        question: what it is to find out.
        changes: what its file sets otherwise than its bases.
        stages: by name, in the order of their work.
        results: each finished evaluation's results, by stage.
        problems: what could not be read, a sentence each.
        unreadable: the evaluations (`evaluation_of`) whose predictions could not be read.
    """

    name: str
    folder: Path
    question: str
    changes: str
    stages: dict[str, Stage]
    results: dict[str, dict[str, Any]]
    problems: list[str]
    unreadable: set[tuple[str, str, str]] = field(default_factory=set)

    @property
    def experiment(self) -> str:
        """Its experiment's name."""
        return self.name.rpartition("/")[0]

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.folder.name.removeprefix("seed"))

    @property
    def output(self) -> str:
        """The folder that its experiment lies in, as one writes it where one is."""
        folder, here = self.folder.parents[1], Path.cwd()
        return (folder.relative_to(here) if folder.is_relative_to(here) else folder).as_posix()

    @property
    def artifacts(self) -> dict[str, Path]:
        """The folders of finished stages."""
        return {name: stage.folder for name, stage in self.stages.items() if stage.state == "finished"}

    def rows(self) -> list[Row]:
        """A row of results for every dataset of every evaluation."""
        return [{**row, "stage": stage} for stage, results in self.results.items() for row in results["rows"]]


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one evaluation on one dataset, an arm of a comparison: rows of predictions, passages by id."""

    arm: str
    dataset: str
    rows: list[Row]
    passages: dict[str, Row]


def evaluation_of(row: Row) -> tuple[str, str, str]:
    """Which evaluation a row of results is of: stage, dataset and split."""
    return row["stage"], row["dataset"], row["split"]


def read_run(folder: Path) -> Run:
    """Read `runs/<experiment>/seed<k>`.

    Raises:
        DataError: it holds nothing that names its stages, or what does is malformed.
    """
    folder = folder.resolve()
    told, places = _told(folder)
    problems: list[str] = []
    stages = {name: _stage(name, place, str(told["reused"].get(name, "")), problems) for name, place in places.items()}
    results: dict[str, dict[str, Any]] = {}
    for name, stage in stages.items():
        if stage.state == "finished" and (stage.folder / "data" / "results.json").exists():
            try:
                found = read_evaluation(stage.folder)
                check_results(found, stage.folder / "data" / "results.json")
            except DataError as error:
                problems.append(str(error))
            else:
                results[name] = found
    named = f"{folder.parent.name}/{folder.name}"
    return Run(named, folder, told["question"], told["changes"], stages, results, problems)


def read_answers(run: Run, *, prefix: str = "") -> Iterator[Answers]:
    """The answers of every evaluation of a run, in the order of its stages; `prefix` comes before the arms' names.

    What cannot be read goes to the run's problems.
    """
    for row in run.rows():
        stage, where = row["stage"], f"{row['dataset']}-{row['split']}"
        data = run.stages[stage].folder / "data"
        passages = data / f"passages-{where}.jsonl"
        try:
            rows = _checked(data / f"predictions-{where}.jsonl", check_episode)
            found = _checked(passages, check_passage) if passages.exists() else []
        except DataError as error:
            run.problems.append(str(error))
            run.unreadable.add(evaluation_of(row))
            continue
        yield Answers(prefix + stage, f"{row['dataset']}/{row['split']}", rows, {each["id"]: each for each in found})


def _checked(path: Path, check_row: Callable[[Row, Path], None]) -> list[Row]:
    rows = list(read_rows(path, None))
    for row in rows:
        check_row(row, path)
    return rows


def _told(folder: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """What a run says of itself: before its work, or, where an earlier version made it, after; and its folders."""
    for name, key, beside in (("experiment.json", "stages", folder.parents[1]), ("results.json", "artifacts", folder)):
        if (path := folder / name).exists():
            told = {"question": "", "changes": "", "reused": {}} | read_json(path)
            check(told, {key: dict, "question": str, "changes": str, "reused": dict}, f"{path}")
            check(told[key], dict.fromkeys(told[key], str), f"{path}")
            return told, {stage: beside / place for stage, place in told[key].items()}
    raise DataError(f"{folder} names no stages: start its experiment, python train.py --config FILE")


def _stage(name: str, folder: Path, otherwise: str, problems: list[str]) -> Stage:
    try:
        manifest = read_manifest(folder)
        problems += damages(folder, manifest.get("files"))
    except DataError as error:
        problems.append(str(error))
        manifest = {}
    if manifest:
        return Stage(name, folder, "finished", manifest, otherwise=otherwise)
    if (folder / "failed.txt").exists():
        return Stage(name, folder, "failed", {}, (folder / "failed.txt").read_text(errors="replace").strip())
    return Stage(name, folder, "not finished" if folder.exists() else "not begun", {})
