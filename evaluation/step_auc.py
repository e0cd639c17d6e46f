"""AUC of step scores within each kind of step, their mean over kinds, and pooled over kinds. Pure: no model, no files.

Kinds differ in how often their steps are true, and later steps are less often true than earlier ones. Pooled AUC
rewards a score that knows no more than that. It is therefore reported beside two baselines that know nothing else:
`position` and `kind`. What a score adds is its AUC within kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.ranking import auc, draw_questions, interval
from evaluation.statistics import Floats
from evaluation.tables import MISSING, table

LOGP, POSITION, KIND = "logp_mean", "position", "kind"
BASELINES: dict[str, Callable[[Sequence[float], int], float]] = {
    LOGP: lambda logps, _: math.fsum(logps) / len(logps),
    "logp_sum": lambda logps, _: math.fsum(logps),
    "logp_min": lambda logps, _: min(logps),
    "shorter": lambda logps, _: -len(logps),
    POSITION: lambda _, place: -place,
}
MACRO, POOLED = "macro", "pooled"

Row = dict[str, Any]
Group = Mapping[str, Any]


def measure_groups(rows: Sequence[Row], scorers: Sequence[str], *, seed: int) -> list[Row]:
    """AUCs of each scorer and baseline: `macro`, then each kind of step, then `pooled`.

    `macro` is the unweighted mean over the kinds that have true and untrue steps. `auc_gain` is the difference to the
    mean log-probability on the same resampled questions. The score of the baseline `kind` is the share of true steps of
    the step's kind among these very steps: with a handful of kinds, fitting it elsewhere would change nothing. A step
    without score ranks last, so leaving out difficult ones earns nothing; a scorer without any score has no AUC.

    A row has the `id` of the question, the `kind` of the step, `valid` (whether true) and `scores` by name; baselines
    are added to the `scorers`.
    """
    names = [*scorers, *BASELINES]
    true = np.array([row["valid"] for row in rows], dtype=bool)
    draws_RN = draw_questions([row["id"] for row in rows], seed=seed)
    kinds = {kind: np.array([row["kind"] == kind for row in rows]) for kind in sorted({row["kind"] for row in rows})}
    scores = {name: np.array([_score(row["scores"][name]) for row in rows]) for name in names}
    within = {
        kind: {name: _resampled(scores[name][used], true[used], draws_RN[:, used]) for name in names}
        for kind, used in kinds.items()
    }
    ranked = [kind for kind, used in kinds.items() if 0 < true[used].mean() < 1]
    groups: list[Row] = []
    if ranked:
        means = {name: np.mean([within[kind][name] for kind in ranked], axis=0) for name in names}
        used = np.any([kinds[kind] for kind in ranked], axis=0)
        groups.append(_group(MACRO, true[used], means))
    for kind, used in kinds.items():
        decisions = {name: scores[name][used] for name in scorers}
        groups.append(_group(kind, true[used], within[kind], decisions))
    rates = {kind: true[used].mean() for kind, used in kinds.items()}
    scores[KIND] = np.array([rates[row["kind"]] for row in rows])
    pooled = {name: _resampled(values, true, draws_RN) for name, values in scores.items()}
    return [*groups, _group(POOLED, true, pooled, {name: scores[name] for name in scorers})]


def headline(groups: Sequence[Group], scorers: Sequence[str]) -> dict[str, float]:
    """Metrics of a manifest: `prm/auc/<kind>`, `prm/auc/macro`, `prm/auc/pooled` and their like.

    The scorer called `prm` is just `prm`, another one and baselines are `prm/<name>`.
    """
    values: dict[str, float | None] = {}
    for name in (*scorers, LOGP, POSITION, KIND):
        prefix = "prm" if name == "prm" else f"prm/{name}"
        values |= {
            f"{prefix}/auc/{group['group']}": group["scorers"][name]["auc"]
            for group in groups
            if name in group["scorers"] and (name in scorers or group["group"] in (MACRO, POOLED))
        }
        if name in scorers:
            values |= {
                f"{prefix}/auc_gain/{MACRO}": g["scorers"][name]["auc_gain"] for g in groups if g["group"] == MACRO
            }
            values[f"{prefix}/accuracy_at_0"] = groups[-1]["scorers"][name].get("accuracy_at_0")
    values["prm/true_share"] = groups[-1]["true"]
    return {name: value for name, value in values.items() if value is not None}


def _score(value: float | None) -> float:
    return -math.inf if value is None else value


def _resampled(scores: Floats, true: NDArray[np.bool_], draws_RN: Floats) -> Floats:
    """`[1 + R]`: the AUC, then that of each resample; NaN for a scorer without any score."""
    if not np.isfinite(scores).any():
        return np.full(1 + len(draws_RN), math.nan)
    return np.array([auc(scores, true), *(auc(scores, true, weights) for weights in draws_RN)])


def _group(
    name: str, true: NDArray[np.bool_], aucs: Mapping[str, Floats], decisions: Mapping[str, Floats] | None = None
) -> Row:
    scorers: dict[str, Row] = {}
    for scorer, drawn in aucs.items():
        figures: dict[str, float] = {}
        for key, values in {"auc": drawn, "auc_gain": drawn - aucs[LOGP]}.items():
            low, high = interval(values[1:])
            figures |= {key: float(values[0]), f"{key}_low": low, f"{key}_high": high}
        if decisions and scorer in decisions and np.isfinite(decisions[scorer]).any():
            above = decisions[scorer] > 0
            figures["accuracy_at_0"] = float((above == true).mean())
            figures["kept_at_0"] = float(above.mean())
            figures["precision_at_0"] = float(true[above].mean()) if above.any() else math.nan
        scorers[scorer] = {key: value if math.isfinite(value) else None for key, value in figures.items()}
    return {"group": name, "n": len(true), "true": float(true.mean()), "scorers": scorers}


def report(groups: Sequence[Group], scorers: Sequence[str]) -> str:
    """The AUCs as a page, within kinds first: a row a scorer, a column a kind of step."""
    *within, pooled = groups
    parts = ["# Ranking of true and untrue steps"]
    parts += [
        "AUC with a 95 % bootstrap interval over questions; .500 is chance. A dash: all steps are true, or none is."
    ]
    parts += ["## Within kinds of step", _table(within)]
    for group in within:
        if group["group"] == MACRO:
            parts += [
                f"`{name}` less `{LOGP}`, mean of kinds: {_cell(group, name, 'auc_gain', '+.3f')}." for name in scorers
            ]
    parts += [
        "## Pooled over kinds",
        f"To compare with `{POSITION}` and `{KIND}`, which know nothing of a step's content.",
    ]
    parts += [_table([pooled]), *_agreements(pooled, scorers)]
    return "\n\n".join(parts) + "\n"


def _agreements(pooled: Group, scorers: Sequence[str]) -> Iterator[str]:
    for name in scorers:
        if (accuracy := pooled["scorers"][name].get("accuracy_at_0")) is not None:
            agrees, always = f"{100 * accuracy:.1f} %", f"{100 * pooled['true']:.1f} %"
            yield f"`{name}`: a score above 0 agrees with the truth for {agrees} of the steps (always true: {always})."


def _table(groups: Sequence[Group]) -> str:
    titles = {MACRO: "mean of kinds", POOLED: "all kinds"}
    header = [f"{titles.get(g['group'], g['group'])} (n {g['n']}, {100 * g['true']:.0f} % true)" for g in groups]
    rows = [[name, *(_cell(group, name) for group in groups)] for name in groups[0]["scorers"]] if groups else []
    return table(["scorer", *header], rows)


def _cell(group: Group, scorer: str, key: str = "auc", shown: str = ".3f") -> str:
    values = group["scorers"][scorer]
    if values[key] is None:
        return MISSING
    return "{} [{}, {}]".format(*(format(values[bound], shown) for bound in (key, f"{key}_low", f"{key}_high")))
