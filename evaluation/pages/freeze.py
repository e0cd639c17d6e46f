"""Freeze results of finished runs: `python -m evaluation.pages.freeze RUN [RUN …] --out FILE --title … --command …`.

RUN is `runs/<experiment>` (all its seeds), `runs/<experiment>/seed<k>`, or either with `:<stage>` for one evaluation.
The JSON (`evaluation.pages.frozen`) holds what it takes to make a page without the runs (`evaluation.pages.page`).
Long experiments can be frozen seed by seed, into files of one folder, which become one page. An arm is called by its
stage without `eval_`, after `<experiment>:` where the runs are of several experiments. Its name on a page is what its
experiment's file says under `names`.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.manifests import load_manifest
from common.terminal import error_line
from evaluation.pages.evaluations import Evaluated, baseline_of, evaluations, results_of
from evaluation.pages.figures import FIGURES, chosen
from evaluation.pages.frozen import write
from evaluation.pages.page import page_parts
from evaluation.pages.training_curves import training_curves
from evaluation.policy_ancestry import PolicyAncestry
from evaluation.results import Arm, display_names, find_arms, find_stages
from evaluation.scoring import MEASURES, OPTIONAL, RATES
from evaluation.steps.rankings import Stage, rankings

Row = dict[str, Any]

_KEPT = (*MEASURES, *OPTIONAL, *(count for counts in RATES.values() for count in counts))


def freeze(
    runs: Sequence[str],
    *,
    title: str,
    command: str,
    question: str = "",
    machine: str | None = None,
    baseline: str | None = None,
    figures: Sequence[str] = (),
) -> Row:
    """The results of runs as JSON, see `evaluation.pages.frozen`; what several experiments share is of the first.

    Args:
        runs: as in the module's docstring.
        title: of the page.
        command: what made the runs.
        question: what the runs answer.
        machine: where; by default a description of this one.
        baseline: the arm that others are compared with, by its name, experiment or stage; by default the first.
        figures: of the page, as in `evaluation.pages.figures:chosen`; the first stands below the answer.

    Raises:
        DataError: there is no such run, it is unfinished or damaged, or it holds nothing for a figure; a stage of a
            policy has no costs; no arm, or more than one, is called `baseline`; arms answered different questions.
    """
    stages = [stage for run in runs for stage in find_stages(run)]
    ranked = rankings(stages)
    measured = _evaluations(runs, required=not ranked)
    places = {(ranking["experiment"], ranking["stage"]) for ranking in ranked}
    artifacts = [each.artifact for each in measured]
    artifacts += [artifact for experiment, _, stage, artifact in stages if (experiment, stage) in places]
    manifests = [load_manifest(artifact, "commit", "versions") for artifact in artifacts]
    versions = [manifest["versions"] for manifest in manifests]
    libraries = dict.fromkeys(name for used in versions for name in used)
    policies = [_Policies.of(measured, stages, seed) for seed in _seeds(measured)]
    frozen: Row = {
        "title": title,
        "question": question,
        "command": command,
        "machine": machine or f"{os.cpu_count()} CPU cores, {platform.system()} {platform.machine()}",
        "versions": {name: ", ".join(dict.fromkeys(used.get(name, "none") for used in versions)) for name in libraries},
        "commits": list(dict.fromkeys(manifest["commit"] or "unknown" for manifest in manifests)),
        "figures": list(figures),
        "baseline": baseline_of(measured, baseline) if measured else None,
        "names": _names(runs, measured, ranked),
        "arms": [arm for seed in policies for arm in seed.arms()],
        "curves": [curve for seed in policies for curve in seed.curves()],
        **results_of(measured, _KEPT),
        "rankings": ranked,
        "stages": list(_stages(stages)),
    }
    list(page_parts(frozen))  # now, while the runs are at hand, not when the page is made
    for asked in figures:
        chosen(asked, frozen)
    return frozen


def _evaluations(runs: Sequence[str], *, required: bool) -> list[Evaluated]:
    """All evaluations of runs, each once; runs that only rank steps may have none, unless they are `required`."""
    found: list[Arm] = []
    for run in runs:
        evaluated = any((artifact / "data" / "results.json").exists() for *_, artifact in find_stages(run))
        found += find_arms(run) if evaluated or required else []
    several = len({arm.experiment for arm in found}) > 1
    named = evaluations(found, lambda arm: (f"{arm.experiment}:" if several else "") + arm.stage.removeprefix("eval_"))
    distinct: dict[Path, Evaluated] = {}
    for each in named:
        distinct.setdefault(each.artifact, each)
    return list(distinct.values())


def _names(runs: Sequence[str], measured: Sequence[Evaluated], ranked: Sequence[Row]) -> dict[str, str]:
    """The display names of arms by arm, and of step rankings by experiment, where their experiments give any."""
    names = {place: name for run in runs for place, name in display_names(run).items()}
    places = {each.arm: (each.experiment, each.stage) for each in measured}
    places |= {ranking["experiment"]: (ranking["experiment"], ranking["stage"]) for ranking in ranked}
    return {own: names[place] for own, place in places.items() if place in names}


def _seeds(measured: Sequence[Evaluated]) -> list[int]:
    return sorted({each.seed for each in measured})


@dataclass(frozen=True)
class _Policies:
    """The evaluations of one seed, and where their policies came from; all by `<experiment>:<stage>`.

    An artifact that several experiments share is called as in the first.
    """

    arms_by_stage: Mapping[str, Evaluated]
    artifacts: Mapping[str, Path]
    ancestry: PolicyAncestry

    @classmethod
    def of(cls, measured: Sequence[Evaluated], stages: Sequence[Stage], seed: int) -> _Policies:
        names: dict[Path, str] = {}
        for experiment, of, stage, artifact in stages:
            if of == seed:
                names.setdefault(artifact, f"{experiment}:{stage}")
        artifacts = {name: artifact for artifact, name in names.items()}
        arms = {names[each.artifact]: each for each in measured if each.seed == seed}
        return cls(arms, artifacts, PolicyAncestry.of(artifacts))

    def arms(self) -> Iterator[Row]:
        """What is known of each policy; that of no fitted policy, and of a version without costs, cost nothing."""
        for stage, each in self.arms_by_stage.items():
            policy = self.ancestry.policy(stage)
            own = self.ancestry.manifests[policy].get("costs") if policy else None
            before = self.ancestry.before(stage, list(self.arms_by_stage)) if policy else []
            yield each.place | {
                "sources": self.ancestry.sources(stage),
                "warm_up": self.arms_by_stage[before[0]].arm if before else None,
                "costs": {"last_tokens": sum(own["tokens"].values())} | self.ancestry.costs(stage) if own else None,
            }

    def curves(self) -> Iterator[Row]:
        """The curves of each policy whose fit was validated."""
        for stage, each in self.arms_by_stage.items():
            if policy := self.ancestry.policy(stage):
                yield from (each.place | curve for curve in training_curves(self.artifacts[policy]))


def _stages(stages: Sequence[Stage]) -> Iterator[Row]:
    """Seconds, costs and metrics of every stage; a stage that several experiments share is listed for the first."""
    seen: set[Path] = set()
    for experiment, seed, stage, artifact in stages:
        if artifact not in seen:
            seen.add(artifact)
            manifest = load_manifest(artifact)
            measured = {name: manifest.get(name) or {} for name in ("costs", "metrics")}
            place = {"experiment": experiment, "seed": seed, "stage": stage}
            yield place | {"seconds": manifest.get("seconds")} | measured


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.pages.freeze", description="Freeze results of runs as JSON."
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="runs/<experiment>[/seed<k>][:<stage>]")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--title", required=True)
    parser.add_argument("--command", required=True, help="the command that made the run")
    parser.add_argument("--question", default="", help="the question that the run answers")
    parser.add_argument("--machine", help="description of the machine (default: of this one)")
    parser.add_argument("--baseline", metavar="NAME", help="the arm that others are compared with (default: the first)")
    known = ", ".join(FIGURES)
    parser.add_argument(
        "--figure", action="append", default=[], help=f"one of {known}, or NAME=ARM,ARM for some; may be repeated"
    )
    options = vars(parser.parse_args(arguments))
    runs, out, figures = options.pop("runs"), options.pop("out"), options.pop("figure")
    try:
        write(out, freeze(runs, **options, figures=figures))
    except UserError as error:
        sys.exit(error_line(error))


if __name__ == "__main__":
    main()
