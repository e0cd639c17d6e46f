"""The overview that a page begins with: four numbers of a run, its stages with their states, the kind of each arm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from common.progress import duration
from evaluation.policy_ancestry import PolicyAncestry
from evaluation.report.run import Run, Stage
from evaluation.tables import MEANINGS, METRICS, MISSING, figure

Row = dict[str, Any]
KINDS = ("teacher", "baseline", "warm-up", "reinforcement")  # of arms, in the order of a page
SIGNS = {"finished": "✓", "failed": "✗", "not finished": "…", "not begun": "○"}
_PROCESS = ("flawed", "recall", "valid_steps", "searches")  # the third number is the first of these that was measured


def by_kind(run: Run) -> Run:
    """The run with the kind of each evaluation's policy, and its evaluations in the order of `KINDS`."""
    ancestry = PolicyAncestry.of(run.artifacts)
    kinds = {stage: _kind(ancestry, stage) for stage in run.results}
    ordered = sorted(run.results, key=lambda stage: KINDS.index(kinds[stage]))
    return replace(run, kinds=kinds, results={stage: run.results[stage] for stage in ordered})


def drawn_name(runs: Sequence[Run], run: Run, stage: str) -> str:
    """An arm's name in figures, where its seeds are one."""
    name = run.names.get(stage, stage)
    several = len({each.experiment for each in runs}) > 1
    return f"{run.experiment}:{name}" if several or name == stage else name


def arm_kinds(runs: Sequence[Run]) -> dict[str, str]:
    """The kind of every arm, by its names in figures and elsewhere, in the order of the kinds."""
    found = [(kind, run, stage) for run in runs for stage, kind in run.kinds.items()]
    found.sort(key=lambda each: KINDS.index(each[0]))
    return {name: kind for kind, run, stage in found for name in (drawn_name(runs, run, stage), run.shown(stage))}


def _kind(ancestry: PolicyAncestry, evaluation: str) -> str:
    """Reinforcement samples tokens while it fits, warm-up does not; what no stage fitted and samples none is a teacher.

    A chat model samples none of its own tokens: as an agent it is a baseline.
    """
    costs = {stage: ancestry.manifests[stage].get("costs") or {} for stage in ancestry.order}
    fitted = ancestry.fitted(evaluation)
    if any(costs[stage].get("tokens") for stage in fitted):
        return "reinforcement"
    if fitted:
        return "warm-up"
    own = costs[evaluation]
    return "teacher" if own.get("tokens") == {} and "api" not in own else "baseline"


def numbers(run: Run, changed: Sequence[Sequence[str]]) -> list[tuple[str, str, str]]:
    """Four numbers as (value, name, note): exact match of the last arm, its gain, a measure of its steps, the time.

    `changed` are the lines of `stage_changes.changes`. Without an evaluation there are none.
    """
    rows = run.rows()
    if not rows:
        return []
    row = next(each for each in rows if each["stage"] == rows[-1]["stage"])  # on its first dataset
    arm, where = run.names.get(row["stage"], row["stage"]), f"{row['dataset']}/{row['split']}"
    interval = [figure("em", row.get(f"em_{end}")) for end in ("low", "high")]
    told = [f"{row['n']} questions of {where}", *([] if MISSING in interval else [" to ".join(interval)])]
    measure = next((name for name in _PROCESS if row.get(name) is not None), _PROCESS[0])
    compared = (line for line in changed if line[0] == arm and line[2] == where and line[1] != MISSING)
    _, before, _, gain, *_ = next(compared, ("", "an earlier policy", "", MISSING))
    points, _, bounds = gain.partition(" ")
    finished = [stage for stage in run.stages.values() if stage.state == "finished"]
    seconds = sum(stage.manifest.get("seconds") or 0 for stage in finished)
    tokens = sum(sum(((stage.manifest.get("costs") or {}).get("tokens") or {}).values()) for stage in finished)
    return [
        (_percent("em", row.get("em")), f"exact match of {arm}", ", ".join(reversed(told))),
        (points, f"points against {before}", bounds.strip("[]").replace(", ", " to ")),
        (_percent(measure, row.get(measure)), METRICS[measure], MEANINGS[METRICS[measure]].partition(",")[0]),
        (duration(seconds), f"for {len(finished)} of {len(run.stages)} stages", f"{tokens:,} tokens sampled"),
    ]


def pipeline(run: Run) -> Iterator[Row]:
    """Every stage in the order of their work: its state, a sign of it, and what it was made of and how long it took."""
    for stage in run.stages.values():
        yield {"name": stage.name, "state": stage.state, "sign": SIGNS[stage.state], "told": ", ".join(_told(stage))}


def _told(stage: Stage) -> Iterator[str]:
    yield stage.state
    if stage.manifest.get("seconds") is not None:
        yield duration(stage.manifest["seconds"])
    if inputs := stage.manifest.get("inputs"):
        yield f"from {' and '.join(inputs)}"


def _percent(measure: str, value: float | None) -> str:
    shown = figure(measure, value)
    return shown if measure == "searches" or shown == MISSING else f"{shown} %"
