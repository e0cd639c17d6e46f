"""Tables of frozen step rankings: what each arm's reward model is worth within kinds of step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evaluation.statistics import holm, paired_t_test
from evaluation.steps.rankings import arm_label, by_seed
from evaluation.steps.step_auc import ALL, LOGP, MACRO, POOLED, POSITION, combined, title
from evaluation.steps.step_page import figures
from evaluation.tables import MISSING, p_value, table

Row = Mapping[str, Any]

_LEGEND = (
    "AUC of true against untrue steps of unseen questions; .500 is chance. Means over seeds; the first brackets are a "
    "95 % bootstrap interval over questions, second ones a 95 % interval over seeds, by Student's t. Gain: over the "
    f"policy's mean log-probability of the step (`{LOGP}`) on the same steps. Judged steps: distinct steps that a "
    "judge was shown, mean over seeds."
)
_BASELINES = (
    f"`{ALL}` is a logistic regression on {LOGP}, its sum and least, length and position, cross-fitted over questions "
    f"within a kind; `+{ALL}` adds the reward model's score to it, and the last column is what that gains."
)
_ERRORS = (
    "Expected calibration error of the score, read as log-odds that a step is true: mean of the seeds. Last column: "
    "how often a score above 0 agrees with the truth."
)


def ranking_parts(rankings: Sequence[Row]) -> Iterator[str]:
    """The parts of a page, from the entries of `evaluation.steps.rankings:rankings`."""
    kinds = list(dict.fromkeys(g["group"] for ranking in rankings for g in ranking["groups"] if _ranked(g)))
    kinds = [kind for kind in kinds if kind not in (MACRO, POOLED)]
    yield "## Ranking of true and untrue steps"
    yield _LEGEND
    yield _table(rankings, "auc", [MACRO, *kinds, POOLED], ".3f", judged=True)
    yield "### Gain over the mean log-probability"
    yield _table(rankings, "auc_gain", [MACRO, *kinds], "+.3f")
    if tests := _against_first(rankings):
        yield f"Mean of kinds, against {arm_label(rankings[0], rankings[0]['scorers'][0])} on the same seeds:"
        yield tests
    yield "### Beside what costs nothing"
    yield _BASELINES
    yield _baselines(rankings)
    yield "### Calibration"
    yield _ERRORS
    yield _errors(rankings, [*kinds, POOLED])


def _table(rankings: Sequence[Row], key: str, groups: Sequence[str], shown: str, *, judged: bool = False) -> str:
    rows = []
    for ranking, scorer in _scorers(rankings):
        found = {group["group"]: group["scorers"][scorer] for group in ranking["groups"]}
        cells = [figures(found.get(group), key, shown) for group in groups]
        rows.append([arm_label(ranking, scorer), _judged(ranking), _listed(ranking["seeds"]), *cells])
    header = ["reward model", "judged steps", "seeds", *map(title, groups)]
    return table(
        header if judged else [header[0], *header[3:]], rows if judged else [[row[0], *row[3:]] for row in rows]
    )


def _baselines(rankings: Sequence[Row]) -> str:
    rows = []
    for ranking, scorer in _scorers(rankings):
        macro = next((g["scorers"] for g in ranking["groups"] if g["group"] == MACRO), {})
        together = macro.get(combined(scorer, ALL))
        names = (scorer, combined(scorer, LOGP), LOGP, POSITION, ALL, combined(scorer, ALL))
        cells = [_plain(macro.get(name)) for name in names]
        rows.append([arm_label(ranking, scorer), *cells, figures(together, "auc_gain_all", "+.3f")])
    return table(["mean of kinds", "score", f"+{LOGP}", LOGP, POSITION, ALL, f"+{ALL}", f"gain over {ALL}"], rows)


def _against_first(rankings: Sequence[Row]) -> str:
    """Paired tests over seeds of each reward model's macro AUC against the first one's; empty without any."""
    first, *others = [
        (arm_label(ranking, scorer), by_seed(ranking, MACRO, scorer)) for ranking, scorer in _scorers(rankings)
    ]
    rows, p = [], []
    for label, values in others:
        seeds = [seed for seed in values if seed in first[1]]
        if len(seeds) > 1:
            test = paired_t_test([values[seed] for seed in seeds], [first[1][seed] for seed in seeds])
            bounds = "" if math.isnan(test.low) else f" [{test.low:+.3f}, {test.high:+.3f}]"
            difference = f"{test.difference:+.3f}{bounds}"
            rows.append([label, _listed(seeds), difference, p_value(test.p)])
            p.append(test.p)
    rows = [[*row, p_value(adjusted)] for row, adjusted in zip(rows, holm(p), strict=True)]
    return table(["reward model", "seeds", "difference over seeds", "p seeds", "Holm"], rows) if rows else ""


def _errors(rankings: Sequence[Row], groups: Sequence[str]) -> str:
    rows = []
    for ranking, scorer in _scorers(rankings):
        runs = ranking["calibration"].get(scorer, [])
        cells = [_mean([g["ece"] for part in runs for g in part if g["group"] == group]) for group in groups]
        agrees = _mean([g["accuracy_at_0"] for part in runs for g in part if g["group"] == POOLED])
        rows.append([arm_label(ranking, scorer), *cells, agrees])
    return table(["reward model", *map(title, groups), "agrees at 0"], rows)


def _scorers(rankings: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    return ((ranking, scorer) for ranking in rankings for scorer in ranking["scorers"])


def _ranked(group: Row) -> bool:
    return any(found["auc"] is not None for found in group["scorers"].values())


def _judged(ranking: Row) -> str:
    known = [count for count in ranking["judged_steps"] if count is not None]
    return f"{np.mean(known):,.0f}" if known else MISSING


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _plain(found: Row | None) -> str:
    return MISSING if found is None or found["auc"] is None else f"{found['auc']:.3f}"


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f}" if values else MISSING
