"""A page over the pages of several conditions: where an arm beats the baseline, and where it collapses.

`<name>.json` of the schema `conditions/1` names the folders or files of frozen results and what each is called:
`title`, `question`, `baseline` and `start` (arms), `budget` (tokens), `pages` (a name of each condition by its frozen
results; pages of one name hold different arms of one condition), `shown` (the page whose curves and events are shown)
and `curves` (the arms of these curves).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import DataError
from evaluation.pages import frozen
from evaluation.pages.arm_names import named
from evaluation.pages.arms import Measured, measured, over_questions, over_seeds, place_of
from evaluation.pages.figures import chosen
from evaluation.pages.heat import Heat
from evaluation.pages.plots import Dots, Lines
from evaluation.pages.training_curves import area
from evaluation.results import read_json
from evaluation.statistics import holm
from evaluation.tables import MISSING, estimate, figure, p_value, table

SCHEMA = "conditions/1"
HOLDS, LIKELY = "●", "○"
STUCK = 0.01  # of exact match above the start
_KEYS = ("title", "question", "baseline", "start", "budget", "pages", "shown", "curves")
_SIGNALS = {"credit/signal_to_noise": "signal to noise", "credit/cosine_to_outcome": "cosine to the outcome's"}
_LEGEND = (
    f"Difference to {{base}}, points of exact match at equal sampled tokens. {HOLDS}: holds over seeds (Student's t, "
    f"p < .05 after Holm over all cells); {LIKELY}: its 95 % interval over seeds leaves 0 out, without correction. "
    "Above: seeds that end above it. Stuck: seeds that end less than a point above the start."
)
_AREAS = (
    "Mean exact match on development questions over the first {budget:,} tokens: of {base}, then of each arm its "
    "difference to that on the same seeds."
)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Condition:
    """Frozen results of one condition, and the same by display names."""

    name: str
    page: str
    frozen: Row
    results: Row
    arms: Mapping[str, Measured]

    def called(self, arm: str) -> str:
        """Display name of an arm, by its id."""
        return next((row["arm"] for row in self.results["arms"] if row["id"] == arm), arm)


@dataclass(frozen=True)
class Cell:
    """An arm in a condition, compared with the baseline by seed."""

    em: float
    flawed: float
    difference: float
    low: float
    high: float
    p: float
    p_questions: float
    above: int
    stuck: int
    seeds: int

    def mark(self, adjusted: float) -> str:
        """Whether the difference holds."""
        return HOLDS if adjusted < 0.05 else LIKELY if self.low > 0 or self.high < 0 else ""


@dataclass(frozen=True)
class Study:
    """Conditions side by side."""

    settings: Row
    conditions: tuple[Condition, ...]

    @property
    def base(self) -> str:
        """Display name of the baseline."""
        return self.conditions[0].called(self.settings["baseline"])

    @property
    def shown(self) -> Condition:
        """The condition whose curves and events are shown."""
        return next(one for one in self.conditions if one.page == self.settings["shown"])

    @cached_property
    def cells(self) -> dict[tuple[str, str], Cell]:
        """By arm and condition, all trained arms but the baseline and those that no seed shares with it."""
        found: dict[tuple[str, str], Cell] = {}
        for condition in self.conditions:
            base, start = (condition.arms[condition.called(self.settings[key])] for key in ("baseline", "start"))
            begun, reached = start.means("em"), base.means("em")
            trained = {row["arm"] for row in condition.results["curves"]}
            for name, arm in condition.arms.items():
                own = arm.means("em")
                test = over_seeds(own, reached)
                if name not in trained or arm is base or arm is start or math.isnan(test.difference):
                    continue
                asked = over_questions(arm, base, "em")
                found[name, condition.name] = Cell(
                    em=_average(arm, "em"),
                    flawed=_average(arm, "flawed"),
                    difference=test.difference,
                    low=test.low,
                    high=test.high,
                    p=test.p,
                    p_questions=asked.p if asked else math.nan,
                    above=sum(value > reached[seed] for seed, value in own.items() if seed in reached),
                    stuck=sum(value < begun.get(seed, 0.0) + STUCK for seed, value in own.items()),
                    seeds=len(own),
                )
        return found

    @cached_property
    def adjusted(self) -> dict[tuple[str, str], float]:
        """p over seeds of every cell, after Holm over all."""
        return dict(zip(self.cells, holm([cell.p for cell in self.cells.values()]), strict=True))


def is_conditions(path: Path) -> bool:
    """Whether a file names conditions, and holds no results itself."""
    return path.is_file() and read_json(path).get("schema") == SCHEMA


def read(path: Path) -> Study:
    """The conditions of a file, with their frozen results.

    Raises:
        DataError: a key or a page is missing, or a page lacks the baseline or the start.
    """
    settings = read_json(path)
    if lacking := [key for key in _KEYS if key not in settings]:
        raise DataError(f"{path} lacks {lacking[0]!r} of {SCHEMA}")
    found: dict[str, tuple[str, Row]] = {}  # by name: its first page, and the results of all its pages
    for page, name in settings["pages"].items():
        results = frozen.read(path.parent / page if (path.parent / page).is_dir() else path.parent / f"{page}.json")
        first, known = found.get(name, (page, None))
        found[name] = first, results if known is None else _joined(known, results)
    conditions = []
    for name, (page, results) in found.items():
        shown = named(results)
        places = [*measured(shown).values()]
        condition = Condition(name, page, results, shown, places[0] if len(places) == 1 else {})
        for key in ("baseline", "start"):
            if condition.called(settings[key]) not in condition.arms:
                raise DataError(f"{path}: {page} must hold one dataset and the arm {settings[key]!r} ({key})")
        conditions.append(condition)
    return Study(settings, tuple(conditions))


def _joined(results: Row, other: Row) -> Row:
    """Results of one condition with the arms that another page has beyond them.

    Raises:
        DataError: the two asked other questions.
    """
    known = {(row["arm"], row["seed"]) for row in results["arms"]}
    asked = {(place_of(row), row["seed"]): row["hashes"] for row in results["questions"]}
    for row in other["questions"]:
        if asked.get((place_of(row), row["seed"]), row["hashes"]) != row["hashes"]:
            raise DataError(f"{other['title']!r} asks other questions than {results['title']!r} (seed {row['seed']})")
    new = {
        part: [row for row in other[part] if (row["arm"], row["seed"]) not in known]
        for part in ("arms", "rows", "stopping", "curves")
    }
    together = {part: [*results[part], *rows] for part, rows in new.items()}
    together["questions"] = [*results["questions"], *other["questions"]]
    return {**results, **together, "names": other.get("names", {}) | results.get("names", {})}


def heat(study: Study) -> Heat:
    """The differences of all arms in all conditions."""
    shown: dict[tuple[str, str], tuple[float, str]] = {}
    for place, cell in study.cells.items():
        text = f"{figure('em', cell.difference, signed=True)} {cell.mark(study.adjusted[place])}"
        shown[place] = 100 * cell.difference, text.strip()
    limit = max([10.0, *(abs(value) for value, _ in shown.values())])
    return Heat(shown, study.settings["title"], f"exact match, points above {study.base}", limit)


def curves(study: Study) -> Dots | Lines:
    """Learning curves of the condition and arms that the file names."""
    return chosen(f"curves={','.join(study.settings['curves'])}", study.shown.frozen)


def event_parts(study: Study) -> Iterator[str]:
    """Credit by event in the condition that the file names."""
    if rows := list(_event_rows(study.shown)):
        yield "## Mean advantage by event"
        yield f"{study.shown.name}: what credit teaches in the first iterations. Means over iterations and seeds."
        names = [name.replace("_", " ") for name in _events_of(study.shown)]
        yield table(["arm", *names, *_SIGNALS.values()], rows)


def difference_parts(study: Study) -> Iterator[str]:
    """What every condition reaches, the differences of all arms, and the areas under their curves."""
    yield "## Conditions"
    header = ["condition", "start", study.base, "flawed", "best arm", "its exact match", "its flawed"]
    yield table(header, [_condition_row(study, condition) for condition in study.conditions])
    yield "## Differences"
    yield _LEGEND.format(base=study.base)
    cells = study.cells
    on_questions = dict(zip(cells, holm([cell.p_questions for cell in cells.values()]), strict=True))
    rows = []
    for (arm, condition), cell in cells.items():
        difference = estimate("em", cell.difference, cell.low, cell.high, signed=True)
        p = study.adjusted[arm, condition]
        row = [arm, condition, figure("em", cell.em), figure("flawed", cell.flawed), f"{difference} {cell.mark(p)}"]
        row += [p_value(p), p_value(on_questions[arm, condition])]
        rows.append([*row, *map(str, (cell.seeds, cell.above, cell.stuck))])
    header = ["arm", "condition", "exact match", "flawed", "difference", "Holm, seeds", "Holm, questions"]
    yield table([*header, "seeds", "above", "stuck"], rows, labels=2)
    if areas := list(_area_rows(study)):
        yield "## Area under the curve"
        yield _AREAS.format(base=study.base, budget=study.settings["budget"])
        yield table(["arm", *(condition.name for condition in study.conditions)], areas)


def _condition_row(study: Study, condition: Condition) -> list[str]:
    base, start = (condition.arms[condition.called(study.settings[key])] for key in ("baseline", "start"))
    seeds = len(base.means("em"))  # an arm of fewer seeds may have the easier ones
    others = {
        name: cell for (name, where), cell in study.cells.items() if where == condition.name and cell.seeds == seeds
    }
    cells = [f"[{condition.name}]({condition.page}.md)", _mean(start, "em"), _mean(base, "em"), _mean(base, "flawed")]
    if not others:
        return [*cells, MISSING, MISSING, MISSING]
    best = max(others, key=lambda name: others[name].em)
    return [*cells, best, figure("em", others[best].em), figure("flawed", others[best].flawed)]


def _area_rows(study: Study) -> Iterator[list[str]]:
    found: dict[str, dict[str, dict[int, float]]] = {}  # by arm, condition and seed
    for condition in study.conditions:
        for row in condition.results["curves"]:
            value = area(row["tokens"], row["em"], study.settings["budget"])
            found.setdefault(row["arm"], {}).setdefault(condition.name, {})[row["seed"]] = value
    base = found.get(study.base, {})
    for arm, by_condition in found.items():
        cells = []
        for condition in study.conditions:
            own, of_base = by_condition.get(condition.name, {}), base.get(condition.name, {})
            values = [own[seed] - (0.0 if arm == study.base else of_base[seed]) for seed in own if seed in of_base]
            cells.append(figure("em", float(np.mean(values or [math.nan])), signed=arm != study.base))
        yield [arm, *cells]


def _events_of(condition: Condition) -> list[str]:
    tags = dict.fromkeys(tag for row in condition.results["curves"] for tag in row["early"])
    return [tag.split("/")[1] for tag in tags if tag.startswith("event/") and tag.endswith("/adv")]


def _event_rows(condition: Condition) -> Iterator[list[str]]:
    by_arm: dict[str, list[Mapping[str, float]]] = {}
    for row in condition.results["curves"]:
        if row["early"]:
            by_arm.setdefault(row["arm"], []).append(row["early"])
    tags = [*(f"event/{name}/adv" for name in _events_of(condition)), *_SIGNALS]
    for arm, rows in by_arm.items():
        known = [[row[tag] for row in rows if row.get(tag) is not None] for tag in tags]
        yield [arm, *(f"{np.mean(values):+.2f}" if values else MISSING for values in known)]


def _average(arm: Measured, measure: str) -> float:
    values = list(arm.means(measure).values())
    return float(np.mean(values)) if values else math.nan


def _mean(arm: Measured, measure: str) -> str:
    return figure(measure, _average(arm, measure))
