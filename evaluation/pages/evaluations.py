"""Evaluations of finished runs, for pages: their results, and rows of results with every question's values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import DataError
from common.seeds import stable_hash
from evaluation.pages.arms import place_of
from evaluation.results import Arm, predictions, read_evaluation
from evaluation.retrieval_recall import stopping_by_hops

Row = dict[str, Any]

_TYPE = "type="
_OF_TYPES = ("n", "em", "em_low", "em_high", "f1", "recall", "searches")


@dataclass(frozen=True)
class Evaluated:
    """An evaluation of one seed; `arm` is its name on a page."""

    arm: str
    experiment: str
    stage: str
    seed: int
    artifact: Path

    @property
    def place(self) -> Row:
        """The keys that its rows begin with."""
        return {"arm": self.arm, "experiment": self.experiment, "seed": self.seed, "stage": self.stage}


def evaluations(arms: Iterable[Arm], name: Callable[[Arm], str]) -> list[Evaluated]:
    """The evaluations of arms, each once, called by a name.

    Raises:
        DataError: two runs have one name and seed: their figures would be merged.
    """
    found: dict[tuple[str, int], Evaluated] = {}
    for arm in arms:
        for seed, artifact in arm.artifacts.items():
            own = Evaluated(name(arm), arm.experiment, arm.stage, seed, artifact)
            other = found.setdefault((own.arm, seed), own)
            if other != own:
                folders = f"{other.artifact} and {artifact}"
                raise DataError(f"two runs are called {own.arm} ({folders}): rename the folder of one, or leave it out")
    return list(found.values())


def baseline_of(measured: Sequence[Evaluated], name: str | None) -> str:
    """The arm called `name`, or the only one of that experiment or stage; by default the first.

    Raises:
        DataError: no arm, or more than one, is called so.
    """
    arms = list(dict.fromkeys(each.arm for each in measured))
    if name is None or name in arms:
        return name or arms[0]
    called = {each.arm for each in measured if name in (*each.arm.split(":"), each.experiment, each.stage)}
    if len(called) != 1:
        what = "several arms are" if called else "no arm is"
        raise DataError(f"{what} called {name!r}; choose one of: {', '.join(arms)}")
    return called.pop()


def results_of(measured: Sequence[Evaluated], measures: Sequence[str]) -> dict[str, Any]:
    """`rows` with every question's values of the measures, `questions`, `stopping`, `types` and `notes`, as frozen.

    Raises:
        DataError: a file is missing or damaged, or arms answered different questions of a dataset with one seed.
    """
    results: dict[str, Any] = {"rows": [], "questions": [], "stopping": [], "types": [], "notes": {}}
    asked: dict[tuple[int, str], tuple[str, dict[str, str]]] = {}  # by seed and dataset: an arm, its ids by hash
    for each in measured:
        evaluation = read_evaluation(each.artifact)
        for row in evaluation["rows"]:
            answered = list(predictions(each.artifact, row["dataset"], row["split"]))
            hashes = {_hash(one): one["id"] for one in answered}
            other, first = asked.setdefault((each.seed, place_of(row)), (each.arm, hashes))
            if differ := [{**hashes, **first}[one] for one in hashes.keys() ^ first.keys()]:
                raise DataError(
                    f"cannot pair {each.arm} with {other} on {place_of(row)}: {len({*differ})} question ids differ "
                    f"({min(differ)}, say); evaluate both on the same questions"
                )
            if first is hashes:
                where = {"seed": each.seed, "dataset": row["dataset"], "split": row["split"]}
                results["questions"].append(where | {"hashes": list(hashes)})
            by_hash = {_hash(one): one for one in answered}
            values = {name: [_short(by_hash[one].get(name)) for one in first] for name in measures}
            kept = {name: numbers for name, numbers in values.items() if any(one is not None for one in numbers)}
            results["rows"].append(each.place | row | {"values": kept})
        results["stopping"] += [each.place | group for group in stopping_by_hops(evaluation["groups"])]
        results["types"] += [each.place | group for group in _by_type(evaluation["groups"])]
        results["notes"].setdefault(each.arm, evaluation["notes"])
    return results


def _by_type(groups: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Of the groups of an evaluation's results, those by type of question."""
    for group in groups:
        if group["group"].startswith(_TYPE):
            place = {"dataset": group["dataset"], "split": group["split"], "type": group["group"].removeprefix(_TYPE)}
            yield place | {name: group.get(name) for name in _OF_TYPES}


def _hash(prediction: Row) -> str:
    """Of id, text and answers: worlds of two seeds may share ids, but not questions."""
    return f"{stable_hash(prediction['id'], prediction['question'], *prediction['answers']):016x}"[:12]


def _short(value: Any) -> float | int | None:
    """Short in JSON: four digits, whole numbers without a point; None for what is not a number."""
    if not isinstance(value, int | float) or math.isnan(value):
        return None
    return int(value) if value == math.floor(value) else round(value, 4)
