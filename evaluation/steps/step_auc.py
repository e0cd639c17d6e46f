"""AUC of step scores within each kind of step, their mean over kinds, and pooled over kinds. Pure: no model, no files.

Kinds differ in how often their steps are true, and later steps are less often true than earlier ones. Pooled AUC
rewards a score that knows no more than that, so what a score is worth is its AUC within kinds, and what it adds is
the gain over training-free baselines: log-probabilities, length, position, and all of these together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.statistics import Floats, seeds_interval
from evaluation.steps.ranking import aucs, cross_fitted, draw_questions, interval

LOGP, POSITION, KIND, ALL = "logp_mean", "position", "kind", "all_baselines"
BASELINES: dict[str, Callable[[Sequence[float], int], float]] = {
    LOGP: lambda logps, _: math.fsum(logps) / len(logps),
    "logp_sum": lambda logps, _: math.fsum(logps),
    "logp_min": lambda logps, _: min(logps),
    "shorter": lambda logps, _: -len(logps),
    POSITION: lambda _, place: -place,
}
MACRO, POOLED = "macro", "pooled"
GAINS = {"auc_gain": LOGP, "auc_gain_all": ALL}

Row = dict[str, Any]
Group = Mapping[str, Any]


def title(group: str) -> str:
    """Heading of a group on a page."""
    return {MACRO: "mean of kinds", POOLED: "all kinds"}.get(group, group)


def combined(scorer: str, other: str) -> str:
    """The name of a scorer combined with a baseline, or with `ALL` baselines."""
    return f"{scorer}+{other}"


def measure_groups(runs: Sequence[Sequence[Row]], scorers: Sequence[str], *, seed: int = 0) -> list[Row]:
    """AUCs of each scorer, alone and combined with the mean log-probability and with all baselines, and of baselines.

    A group is `macro`, then each kind of step, then `pooled`. `macro` is the unweighted mean over the kinds that have
    true and untrue steps. On the same resampled questions, `auc_gain` is the difference to the mean log-probability and
    `auc_gain_all` that to `ALL`, the baselines combined: all that can be known of a step without a reward model.
    Combinations are logistic regressions within a kind, cross-fitted over questions, and not fitted anew in resamples.
    The score of the baseline `kind` is the share of true steps of the step's kind among these very steps: with a
    handful of kinds, fitting it elsewhere would change nothing. A step without score ranks last, so leaving out
    difficult ones earns nothing; a scorer without any score has no AUC.

    Figures are means over `runs`, which are seeds; `_low` and `_high` bound a 95 % bootstrap interval over the
    questions of these runs. For several runs `_seeds` lists the figure of each, None where it has none, and
    `_seeds_low` and `_seeds_high` bound a 95 % interval over seeds, by Student's t.

    A row has the `id` of the question, the `kind` of the step, `valid` (whether true) and `scores` by name; baselines
    are added to the `scorers`. The draws depend on `seed` and the questions: same runs, same figures.
    """
    measured = [_Areas.of(rows, scorers, seed=seed + number) for number, rows in enumerate(runs)]
    names = dict.fromkeys(name for areas in measured for name in areas.groups)
    kinds = sorted(set(names) - {MACRO, POOLED})
    return [_group(name, measured) for name in (MACRO, *kinds, POOLED) if name in names]


@dataclass(frozen=True, slots=True)
class _Areas:
    """One run: the truth of each group's steps, and AUCs by group and scorer, `[1 + R]`: its own and the resamples'."""

    true: dict[str, NDArray[np.bool_]]
    groups: dict[str, dict[str, Floats]]

    @classmethod
    def of(cls, rows: Sequence[Row], scorers: Sequence[str], *, seed: int) -> _Areas:
        true = np.array([row["valid"] for row in rows], dtype=bool)
        questions = [row["id"] for row in rows]
        weights = np.vstack([np.ones(len(rows)), draw_questions(questions, seed=seed)])
        kind_of = np.array([row["kind"] for row in rows])
        kinds = {kind: kind_of == kind for kind in sorted(set(kind_of.tolist()))}
        scores = dict(_scores(rows, scorers, true, kinds))
        truth = {kind: true[used] for kind, used in kinds.items()}
        groups = {
            kind: {name: _resampled(values[used], true[used], weights[:, used]) for name, values in scores.items()}
            for kind, used in kinds.items()
        }
        if ranked := [kind for kind, steps in truth.items() if 0 < steps.mean() < 1]:
            groups[MACRO] = {name: np.mean([groups[kind][name] for kind in ranked], axis=0) for name in scores}
            truth[MACRO] = np.concatenate([truth[kind] for kind in ranked])
        rates = {kind: true[used].mean() for kind, used in kinds.items()}
        scores[KIND] = np.array([rates[row["kind"]] for row in rows])
        groups[POOLED] = {name: _resampled(values, true, weights) for name, values in scores.items()}
        return cls(truth | {POOLED: true}, groups)


def _scores(
    rows: Sequence[Row], scorers: Sequence[str], true: NDArray[np.bool_], kinds: Mapping[str, NDArray[np.bool_]]
) -> Iterator[tuple[str, Floats]]:
    """All scores by name, −∞ where a step has none."""
    own = {name: np.array([_score(row["scores"][name]) for row in rows]) for name in (*scorers, *BASELINES)}
    parts_of = {combined(name, LOGP): (name, LOGP) for name in scorers}
    parts_of |= {combined(name, ALL): (name, *BASELINES) for name in scorers} | {ALL: tuple(BASELINES)}
    for name, parts in parts_of.items():
        own[name] = np.empty(len(rows))
        for used in kinds.values():
            questions = [row["id"] for row, inside in zip(rows, used, strict=True) if inside]
            own[name][used] = cross_fitted(np.column_stack([own[part][used] for part in parts]), true[used], questions)
    together = [combined(name, other) for name in scorers for other in (LOGP, ALL)]
    for name in (*scorers, *together, *BASELINES, ALL):
        yield name, own[name]


def _score(value: float | None) -> float:
    return -math.inf if value is None else value


def _resampled(scores: Floats, true: NDArray[np.bool_], weights_RN: Floats) -> Floats:
    """The AUC under each weighting; NaN for a scorer without any score."""
    if not np.isfinite(scores).any():
        return np.full(len(weights_RN), math.nan)
    return aucs(scores, true, weights_RN)


def _group(name: str, runs: Sequence[_Areas]) -> Row:
    having = [areas for areas in runs if name in areas.groups]
    true = np.concatenate([areas.true[name] for areas in having])
    missing = np.full_like(having[0].groups[name][LOGP], math.nan)
    scorers: dict[str, Row] = {}
    for scorer in having[0].groups[name]:
        drawn = [areas.groups.get(name, {}).get(scorer, missing) for areas in runs]
        scorers[scorer] = _figures("auc", drawn)
        for key, other in GAINS.items():
            base = [areas.groups.get(name, {}).get(other, missing) for areas in runs]
            scorers[scorer] |= _figures(key, [a - b for a, b in zip(drawn, base, strict=True)])
    return {"group": name, "n": len(true), "true": float(true.mean()), "scorers": scorers}


def _figures(key: str, runs: Sequence[Floats]) -> Row:
    """The mean over the runs that have a figure, with its intervals; None where none has."""
    known = [drawn for drawn in runs if math.isfinite(drawn[0])]
    mean = np.mean(known, axis=0) if known else np.full(2, math.nan)
    figures: Row = {key: _known(mean[0])} | _bounds(key, interval(mean[1:]))
    if len(runs) > 1:
        figures[f"{key}_seeds"] = [_known(drawn[0]) for drawn in runs]
        figures |= _bounds(f"{key}_seeds", seeds_interval([drawn[0] for drawn in known]))
    return figures


def _bounds(key: str, bounds: tuple[float, float]) -> Row:
    return {f"{key}_{end}": _known(bound) for end, bound in zip(("low", "high"), bounds, strict=True)}


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def headline(groups: Sequence[Group], scorers: Sequence[str]) -> dict[str, float]:
    """Metrics of a manifest: `prm/auc/<group>`; `prm/auc_gain/<group>`, the macro one with its interval; baselines.

    The scorer called `prm` is just `prm`; another one, a combination and a baseline are `prm/<name>`, and have the
    groups `macro` and `pooled` alone unless they are scorers.
    """
    values: dict[str, float | None] = {"prm/true_share": groups[-1]["true"]}
    together = [combined(name, other) for name in scorers for other in (LOGP, ALL)]
    for group in groups:
        place, means = group["group"], group["group"] in (MACRO, POOLED)
        for name in scorers:
            prefix, found = prefix_of(name), group["scorers"][name]
            values[f"{prefix}/auc/{place}"] = found["auc"]
            if place != POOLED:
                values[f"{prefix}/auc_gain/{place}"] = found["auc_gain"]
            if place == MACRO:
                values |= {f"{prefix}/auc_gain/{place}_{end}": found[f"auc_gain_{end}"] for end in ("low", "high")}
                with_all = combined(name, ALL)
                values[f"prm/{with_all}/auc_gain_all/{place}"] = group["scorers"][with_all]["auc_gain_all"]
        for name in (*together, LOGP, POSITION, ALL, KIND) if means else ():
            if name in group["scorers"]:
                values[f"prm/{name}/auc/{place}"] = group["scorers"][name]["auc"]
    return {name: value for name, value in values.items() if value is not None}


def prefix_of(scorer: str) -> str:
    """Prefix of a scorer's metrics: `prm` for the scorer of that name, `prm/<name>` for any other."""
    return "prm" if scorer == "prm" else f"prm/{scorer}"
