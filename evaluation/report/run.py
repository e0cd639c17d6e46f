"""A run read from its folder for a page, whatever its state: finished, unfinished, or with a failed stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from common.api_costs import api_text
from common.contents import damages
from common.errors import DataError
from datamodules.records import read_rows
from evaluation.pages.arm_names import distinct
from evaluation.results import read_evaluation, read_json, read_manifest
from evaluation.tables import METRICS

Row = dict[str, Any]
Needs = Mapping[str, type | tuple[type, ...]]
State = Literal["finished", "failed", "not finished", "not begun"]

_SCORE = (int, float, type(None))
_EPISODE: Needs = {
    **dict.fromkeys(("id", "question", "prediction", "status"), str),
    **{"answers": list, "steps": list, "em": _SCORE, "f1": _SCORE},
}
_STEP: Needs = {"kind": str, "text": str, "valid": bool, "hits": list}
_PASSAGE: Needs = {"title": str, "text": str}
_MEASURES: Needs = {f"{metric}{end}": _SCORE for metric in METRICS for end in ("", "_low", "_high")}


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a run, with its artifact folder.

    `error` is why it failed; `otherwise` says how a reused one was made differently, such as by other code.
    """

    name: str
    folder: Path
    state: State
    manifest: Mapping[str, Any]
    error: str = ""
    otherwise: str = ""

    @property
    def status(self) -> str:
        """Its state in words."""
        if self.otherwise:
            return f"{self.state}, made {self.otherwise}"
        return f"failed: {self.error}" if self.state == "failed" else self.state

    @property
    def chat_models(self) -> list[str]:
        """What it spent on chat models, a phrase a model."""
        return api_text((self.manifest.get("costs") or {}).get("api", {}))


@dataclass(frozen=True, slots=True)
class Run:
    """An experiment of one seed.

    Attributes:
        name: `<experiment>/seed<k>`, with its output folder in front where several runs on a page have the same.
        folder: where its pages are.
        question: what it is to find out.
        changes: settings in which its file differs from its bases.
        stages: by name, in the order of their work.
        results: each finished evaluation's results, by stage.
        problems: what could not be read, a sentence each.
        unreadable: the evaluations (stage, dataset, split) whose predictions could not be read.
        prefix: what comes before the names of its stages, where a page has several runs.
        names: the display names of stages, by stage.
        kinds: what made the policy of each evaluation, by stage (`overview.by_kind`).
    """

    name: str
    folder: Path
    question: str
    changes: str
    stages: dict[str, Stage]
    results: dict[str, dict[str, Any]]
    problems: list[str]
    unreadable: set[tuple[str, str, str]] = field(default_factory=set)
    prefix: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)

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
        """Output folder relative to the current directory."""
        folder, here = self.folder.parents[1], Path.cwd()
        return (folder.relative_to(here) if folder.is_relative_to(here) else folder).as_posix()

    @property
    def artifacts(self) -> dict[str, Path]:
        """The folders of finished stages."""
        return {name: stage.folder for name, stage in self.stages.items() if stage.state == "finished"}

    def shown(self, stage: str) -> str:
        """The display name of a stage, or else the stage, behind the run's prefix."""
        return self.prefix + self.names.get(stage, stage)

    def rows(self, part: str = "rows") -> list[Row]:
        """The results of every dataset of every evaluation, or, of `groups`, of every group of its questions."""
        return [{**row, "stage": stage} for stage, results in self.results.items() for row in results[part]]


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one evaluation on one dataset, an arm of a comparison: rows of predictions, passages by id."""

    arm: str
    dataset: str
    rows: list[Row]
    passages: dict[str, Row]


def read_run(folder: Path) -> Run:
    """Read `runs/<experiment>/seed<k>`.

    Raises:
        DataError: it holds nothing that names its stages, or what does is malformed.
    """
    folder = folder.resolve()
    entry, places = _recorded(folder)
    problems: list[str] = []
    stages = {name: _stage(name, place, str(entry["reused"].get(name, "")), problems) for name, place in places.items()}
    results: dict[str, dict[str, Any]] = {}
    for name, stage in stages.items():
        path = stage.folder / "data" / "results.json"
        if stage.state == "finished" and path.exists():
            try:
                found = read_evaluation(stage.folder)
                for row in (*found["rows"], *found["groups"]):
                    check(row, {key: _MEASURES[key] for key in row.keys() & _MEASURES.keys()}, f"{path}: a row")
                for group in found["groups"]:
                    check(group, {"group": str}, f"{path}: a group")
            except DataError as error:
                problems.append(str(error))
            else:
                results[name] = found
    named = f"{folder.parent.name}/{folder.name}"
    names = distinct({name: shown for name, shown in entry["names"].items() if name in stages}, stages)
    return Run(named, folder, entry["question"], entry["changes"], stages, results, problems, names=names)


def read_answers(run: Run) -> Iterator[Answers]:
    """The answers of every evaluation of a run, stage by stage; files that cannot be read become `problems`."""
    for row in run.rows():
        stage, where = row["stage"], f"{row['dataset']}-{row['split']}"
        data = run.stages[stage].folder / "data"
        passages = data / f"passages-{where}.jsonl"
        try:
            rows = _checked(data / f"predictions-{where}.jsonl", check_episode)
            found = _checked(passages, check_passage) if passages.exists() else []
        except DataError as error:
            run.problems.append(str(error))
            run.unreadable.add((stage, row["dataset"], row["split"]))
            continue
        yield Answers(run.shown(stage), f"{row['dataset']}/{row['split']}", rows, {each["id"]: each for each in found})


def named_rankings(runs: Iterable[Run], ranked: Sequence[Row]) -> list[Row]:
    """Step rankings with the `name` that their experiment gives them, or else the experiment's own."""
    places = [(each["experiment"], each["stage"]) for each in ranked]
    given = {(run.experiment, stage): name for run in runs for stage, name in run.names.items()}
    names = distinct(given, {experiment for experiment, _ in places})
    return [{**each, "name": names.get(place, place[0])} for each, place in zip(ranked, places, strict=True)]


def check(value: object, needs: Needs, what: str) -> None:
    """Check that a value is an object with the keys and types that `needs` lists; `what` names it in messages.

    Raises:
        DataError: something is missing, or is of another type.
    """
    if not isinstance(value, dict):
        raise DataError(f"{what} is a {type(value).__name__}, not an object")
    for key, kind in needs.items():
        if key not in value:
            raise DataError(f"{what} lacks {key!r}: another version made it; run the stage again")
        if not isinstance(value[key], kind):
            raise DataError(f"{what} has a {type(value[key]).__name__} as {key!r}")


def check_episode(row: Any, where: object, more: Needs | None = None) -> None:
    """Check an episode and its steps; `more` are further keys that it needs.

    Raises:
        DataError: as `check`.
    """
    check(row, {**_EPISODE, **(more or {})}, f"{where}: an episode")
    for step in row["steps"]:
        check(step, _STEP, f"{where}: a step of {row['id']}")


def check_passage(row: object, where: object, more: Needs | None = None) -> None:
    """Check a passage: it needs a text and, unless `more` says otherwise, an id.

    Raises:
        DataError: as `check`.
    """
    check(row, {**_PASSAGE, **({"id": str} if more is None else more)}, f"{where}: a passage")


def _checked(path: Path, check_row: Callable[[Row, Path], None]) -> list[Row]:
    rows = list(read_rows(path, None))
    for row in rows:
        check_row(row, path)
    return rows


def _recorded(folder: Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """The record that a run wrote before its work (an earlier version: after it), and the folders of its stages."""
    for name, key, root in (("experiment.json", "stages", folder.parents[1]), ("results.json", "artifacts", folder)):
        if (path := folder / name).exists():
            entry = {"question": "", "changes": "", "reused": {}, "names": {}} | read_json(path)
            check(entry, {key: dict, "question": str, "changes": str, "reused": dict, "names": dict}, f"{path}")
            for part in (key, "names"):
                check(entry[part], dict.fromkeys(entry[part], str), f"{path}")
            return entry, {stage: root / place for stage, place in entry[key].items()}
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
