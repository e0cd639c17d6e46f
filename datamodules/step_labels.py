"""Labels of single steps as a stage: a judge says how right each is, whatever its history and its siblings."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common.costs import JUDGED_STEPS, counted
from common.errors import ConfigError, DataError
from common.files import atomic_write, write_json
from datamodules.record_stage import join_units, missing, summed, units, write_counts
from datamodules.records import LABELLED, labelled_to_row, rows_in, write_rows
from datamodules.step_paths import Use, by_hash, chosen_steps, judgeable_steps, question_paths, step_id
from envs.interfaces import AgentFormat, StepJudge
from envs.labelled_steps import LabelledEpisode
from envs.pairs import Candidate
from envs.types import Episode

log = logging.getLogger(__name__)


class StepLabels:
    """Record stage of labelled steps: `data/labels.jsonl`, `data/step_labels.json` and `report.md`.

    Every step in format is judged alone and once, however many paths share it; a query also needs hits. What the
    policy writes a second time after the same context is a step of its own. Siblings that differ in their words alone
    are labelled too, so nothing of the search is lost, as it is where only pairs with a better and a worse side count.

    Questions are judged in units of `unit`, shared out over ranks. A unit is written complete, with its counts, so a
    killed run continues with the first missing unit and no step of a written unit is judged again.

    Args:
        path: the stage folder of a search, or of any stage that holds episodes.
        protocol: the format of its episodes.
        judge: labels steps.
        use: paths through the search's trees, finished episodes (`rollouts`), or both.
        most: steps judged at most; None judges all. They are of as many questions as there can be, and those of a
            smaller number are among those of a larger one.
        unit: questions a unit.

    Raises:
        ConfigError: a number is too low.
    """

    def __init__(
        self,
        path: Path,
        protocol: AgentFormat,
        judge: StepJudge,
        *,
        use: Use = "tree",
        most: int | None = None,
        unit: int = 64,
    ) -> None:
        if unit < 1 or (most is not None and most < 1):
            raise ConfigError(f"unit {unit}, most {most}: each must be at least 1")
        self.path, self.protocol, self.judge = Path(path), protocol, judge
        self.use: Use = use
        self.most, self.unit = most, unit

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Judge this rank's units that are not written yet.

        Raises:
            DataError: there are no paths.
        """
        chosen = None if self.most is None else chosen_steps(self._questions(), most=self.most, seed=seed)
        trees = 0 if self.use == "rollouts" else rows_in(self.path / "data" / "trees.jsonl")
        batches = units(folder / "data" / "units", self._questions(), self.unit, count=trees)
        for path, questions in missing(batches, rank=rank, world_size=world_size):
            asked: dict[str, Candidate] = {}
            places: list[tuple[Episode, dict[int, str]]] = []  # of each path the steps whose labels it will hold
            for episode in (episode for paths in questions for episode in by_hash(paths, seed=seed)):
                steps = {index: one for index, one in judgeable_steps(episode) if step_id(one) not in asked}
                held = {index: one for index, one in steps.items() if chosen is None or step_id(one) in chosen}
                asked |= {step_id(one): one for one in held.values()}
                places.append((episode, {index: step_id(one) for index, one in held.items()}))
            before = counted(self.judge)
            labels = dict(zip(asked, self.judge.label([*asked.values()]), strict=True))
            spent = counted(self.judge) - before + Counter({JUDGED_STEPS: len(asked)})
            write_counts(path, spent, **_summary(asked, labels))
            write_rows(path, map(labelled_to_row, _labelled(places, labels)))

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Join the units.

        Headline: questions; `steps` with a label and `unlabelled` ones; by kind how many and their mean label.

        Raises:
            DataError: no step has a label.
        """
        counts, total = summed(join_units(folder, "labels.jsonl", LABELLED))
        if self.most is not None and counts[JUDGED_STEPS] < self.most:
            log.warning("%s holds %d steps to judge, not the %d of `most`", self.path, counts[JUDGED_STEPS], self.most)
        kinds = sorted(name.removeprefix("steps/") for name in total if name.startswith("steps/"))
        if not kinds:
            raise DataError(
                f"{self.path}: the judge labelled none of {counts[JUDGED_STEPS]} steps; check the judge, or search more"
            )
        figures: dict[str, float] = {"steps": float(sum(total[f"steps/{kind}"] for kind in kinds))}
        figures |= {name: float(total[name]) for name in ("unlabelled", "questions")}
        for kind in kinds:
            figures[f"steps/{kind}"] = float(total[f"steps/{kind}"])
            figures[f"label/{kind}"] = total[f"sum/{kind}"] / total[f"steps/{kind}"]
        write_json(folder / "data" / "step_labels.json", figures | {"counts": dict(sorted(counts.items()))})
        with atomic_write(folder / "report.md") as file:
            file.write(_report(figures, kinds))
        return figures | {name: float(count) for name, count in counts.items()}

    def _questions(self) -> Iterator[list[Episode]]:
        """The paths of each question that has any."""
        found = False
        for paths in question_paths(self.path, self.protocol, self.use):
            if paths:
                found = True
                yield paths
        if not found:
            raise DataError(f"{self.path}: no steps to judge")


def _labelled(
    places: Sequence[tuple[Episode, dict[int, str]]], labels: dict[str, float | None]
) -> Iterator[LabelledEpisode]:
    """The paths that hold a label."""
    for episode, held in places:
        own = {index: labels[name] for index, name in held.items()}
        if any(label is not None for label in own.values()):
            yield LabelledEpisode(episode, tuple(own.get(index) for index in range(len(episode.steps))))


def _summary(asked: dict[str, Candidate], labels: dict[str, float | None]) -> dict[str, Any]:
    """Counts of a unit, and sums of labels by kind."""
    summary: Counter[str] = Counter({"unlabelled": 0})
    questions: set[str] = set()
    for name, candidate in asked.items():
        label = labels[name]
        if label is None:
            summary["unlabelled"] += 1
            continue
        kind = candidate.episode.steps[-1].kind
        questions.add(candidate.episode.question.id)
        summary[f"steps/{kind}"] += 1
        summary[f"sum/{kind}"] += label  # pyright: ignore[reportArgumentType]
    return dict(summary) | {"questions": len(questions)}


def _report(figures: dict[str, float], kinds: Sequence[str]) -> str:
    """What was labelled, by kind of step."""
    said = f"{figures['steps']:g} labelled steps of {figures['questions']:g} questions; "
    said += f"{figures['unlabelled']:g} more without a label."
    rows = [f"| {kind} | {figures[f'steps/{kind}']:g} | {figures[f'label/{kind}']:.3f} |" for kind in kinds]
    return (
        "\n".join(["# Labels of steps", "", said, "", "| kind | steps | mean label |", "|---|--:|--:|", *rows]) + "\n"
    )
