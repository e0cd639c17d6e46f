"""A judge of steps beside a person: steps drawn to be read without its labels, then how often the two agree.

    python -m evaluation.steps.hand_readings draw runs/store/label-… sheet.csv --steps 100
    python -m evaluation.steps.hand_readings compare runs/store/label-… sheet.csv --out readings.csv

`draw` writes a sheet with the text of each step and an empty column `reading`: 1 for a good step, 0 for a bad one,
empty where the text does not tell; `note` says why. `compare` prints the agreement, and `--out` keeps the readings and
labels without questions and passages, which may not be one's own to publish.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path

import torch
from torchmetrics.functional.classification import binary_cohen_kappa

from common.errors import ConfigError, DataError
from common.files import atomic_write
from common.row_files import read_table
from common.seeds import stable_hash
from common.terminal import prepare_terminal, print_error, say
from datamodules.records import LABELLED, labelled_from_row, read_rows
from datamodules.step_paths import judgeable_steps, step_id
from envs.pairs import Candidate
from envs.types import Episode, Step
from evaluation.tables import MISSING, figure, table

_SHEET = ("step", "kind", "text", "reading", "note")
_KEPT = ("step", "kind", "reading", "label", "note")
_READINGS = {"1": True, "0": False}


@dataclass(frozen=True, slots=True)
class Reading:
    """A step that a person read, and what the judge says of it."""

    step: str
    kind: str
    good: bool
    label: float
    note: str = ""

    @property
    def called_good(self) -> bool:
        """Whether the judge's label is at least a half."""
        return self.label >= 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw a sheet or compare one; 2 where a file is missing or malformed."""
    prepare_terminal()
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.steps.hand_readings",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("draw", "compare"))
    parser.add_argument("labels", type=Path, help="folder of a stage of step labels")
    parser.add_argument("sheet", type=Path, help="CSV file of steps to read")
    parser.add_argument("--steps", type=int, default=100, help="steps to draw; default 100")
    parser.add_argument("--seed", type=int, default=0, help="of the draw; default 0")
    parser.add_argument("--out", type=Path, help="CSV file of readings and labels, without texts")
    options = parser.parse_args(arguments)
    try:
        if options.action == "draw":
            draw(options.labels, options.sheet, steps=options.steps, seed=options.seed)
        else:
            readings = compared(options.labels, options.sheet)
            if options.out:
                keep(readings, options.out)
            say(agreement(readings))
    except (ConfigError, DataError) as error:
        print_error(error)
        return 2
    return 0


def draw(labels: Path, sheet: Path, *, steps: int, seed: int = 0) -> None:
    """Write a sheet of labelled steps, chosen by hash whatever their labels.

    Raises:
        ConfigError: `steps` is below 1, or the sheet exists: it may hold readings.
        DataError: there are fewer labelled steps.
    """
    if steps < 1:
        raise ConfigError(f"--steps {steps}: must be at least 1")
    if sheet.exists():
        raise ConfigError(f"{sheet} exists and may hold readings: remove it or choose another name")
    candidates = (candidate for candidate, _ in _labelled(labels))  # streamed: no more than the drawn ones are held
    found = nsmallest(steps, candidates, key=lambda one: stable_hash(seed, "reading", step_id(one)))
    if len(found) < steps:
        raise DataError(f"{labels} holds {len(found)} labelled steps, not {steps}")
    with atomic_write(sheet) as file:
        writer = csv.writer(file)
        writer.writerow(_SHEET)
        for candidate in found:
            last = candidate.episode.steps[-1]
            writer.writerow((step_id(candidate), last.kind, shown(candidate.episode), "", ""))


def compared(labels: Path, sheet: Path) -> list[Reading]:
    """The rows of a sheet that were read, with the judge's labels.

    Raises:
        DataError: the sheet lacks a column, a reading is none of 1, 0 and empty, a step is not among the labels or
            twice in the sheet, or none was read.
    """
    known = {step_id(candidate): (candidate.episode.steps[-1].kind, label) for candidate, label in _labelled(labels)}
    readings: dict[str, Reading] = {}
    for where, row in read_table(sheet):
        if lacking := [name for name in ("step", "reading", "note") if name not in row]:
            raise DataError(f"{where}: no column {lacking[0]!r}")
        step, reading = row["step"], row["reading"].strip()
        if step not in known or step in readings:
            why = "is in the sheet twice" if step in readings else f"is not among the labels of {labels}"
            raise DataError(f"{where}: step {step!r} {why}")
        if reading and reading not in _READINGS:
            raise DataError(f"{where}: reading {reading!r} must be 1, 0 or empty")
        if reading:
            kind, label = known[step]
            readings[step] = Reading(step, kind, _READINGS[reading], label, row["note"].strip())
    if not readings:
        raise DataError(f"{sheet}: no step has a reading")
    return [*readings.values()]


def keep(readings: Sequence[Reading], path: Path) -> None:
    """Write readings and labels without the text of the steps."""
    with atomic_write(path) as file:
        writer = csv.writer(file)
        writer.writerow(_KEPT)
        for one in readings:
            writer.writerow((one.step, one.kind, int(one.good), one.label, one.note))


def agreement(readings: Sequence[Reading]) -> str:
    """A Markdown table by kind of step: steps read, agreement, Cohen's κ, and both ways to disagree."""
    by_kind: dict[str, list[Reading]] = {"all": [*readings]}
    for one in readings:
        by_kind.setdefault(one.kind, []).append(one)
    header = ["kind", "read", "good", "agree", "κ", "good, called bad", "bad, called good"]
    return table(header, [[kind, *_agreement_row(rows)] for kind, rows in by_kind.items()])


def _agreement_row(rows: Sequence[Reading]) -> list[str]:
    good = torch.tensor([one.good for one in rows])
    called = torch.tensor([one.called_good for one in rows])
    one_class = len({*good.tolist(), *called.tolist()}) == 1  # agreement by chance is certain
    kappa = MISSING if one_class else f"{float(binary_cohen_kappa(called.int(), good.int())):.2f}"
    share = figure("em", float((good == called).float().mean()))
    missed, passed = int((good & ~called).sum()), int((~good & called).sum())
    return [str(len(rows)), str(int(good.sum())), f"{share} %", kappa, str(missed), str(passed)]


def shown(episode: Episode) -> str:
    """Question, gold reasoning, the steps so far with what they found, and the last one, as a person reads them."""
    question = episode.question
    lines = [f"Question: {question.text}", f"Gold: {' / '.join(question.answers)}"]
    if question.gold:
        lines += [f"  {step.question} -> {step.answer}" for step in question.gold.steps]
    for number, step in enumerate(episode.steps, 1):
        mark = ">>> TO READ" if number == len(episode.steps) else "step"
        lines += [f"{mark} {number}, {step.kind}: {step.said or step.text}", *_found(step)]
    return "\n".join(lines)


def _found(step: Step) -> Iterator[str]:
    for hit in step.hits:
        yield f"    [{hit.document.title}] {hit.document.text if hit.shown is None else hit.shown}"


def _labelled(labels: Path) -> Iterator[tuple[Candidate, float]]:
    """Each labelled step, as an episode that ends in it, and its label."""
    path = labels / "data" / "labels.jsonl"
    for row in read_rows(path, LABELLED):
        one = labelled_from_row(row, str(path))
        steps: Mapping[int, Candidate] = dict(judgeable_steps(one.episode))
        yield from ((steps[index], label) for index, label in enumerate(one.labels) if label is not None)


if __name__ == "__main__":
    sys.exit(main())
