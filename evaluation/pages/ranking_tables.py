"""Tables of frozen step rankings: what each arm's reward model is worth within kinds of step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.pages.arms import Row, over_seeds
from evaluation.statistics import holm
from evaluation.steps.rankings import arm_label, by_seed
from evaluation.steps.step_auc import ALL, LOGP, MACRO, POOLED, POSITION, combined, title
from evaluation.steps.step_page import figures
from evaluation.tables import MISSING, p_value, table

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


@dataclass(frozen=True)
class _Model:
    """A reward model of a ranking, and its name on a page."""

    name: str
    ranking: Row
    scorer: str

    def place(self) -> list[str]:
        """Its name, the steps that were judged for it, mean over seeds, and its seeds."""
        known = [count for count in self.ranking["judged_steps"] if count is not None]
        return [self.name, f"{np.mean(known):,.0f}" if known else MISSING, _listed(self.ranking["seeds"])]

    def cells(self, key: str, groups: Sequence[str], shown: str) -> list[str]:
        """A figure within each of some groups."""
        found = {group["group"]: group["scorers"][self.scorer] for group in self.ranking["groups"]}
        return [figures(found.get(group), key, shown) for group in groups]

    def baselines(self) -> list[str]:
        """The mean of kinds of its score and of training-free baselines, alone and combined."""
        macro = next((group["scorers"] for group in self.ranking["groups"] if group["group"] == MACRO), {})
        names = (self.scorer, combined(self.scorer, LOGP), LOGP, POSITION, ALL, combined(self.scorer, ALL))
        areas = [_mean([macro[name]["auc"]] if name in macro else []) for name in names]
        return [*areas, figures(macro.get(names[-1]), "auc_gain_all", "+.3f")]

    def errors(self, groups: Sequence[str]) -> list[str]:
        """Its calibration error within each of some groups, and how often a score above 0 agrees with the truth."""
        found = [group for seed in self.ranking["calibration"].get(self.scorer, []) for group in seed]
        errors = [_mean([each["ece"] for each in found if each["group"] == group]) for group in groups]
        return [*errors, _mean([each["accuracy_at_0"] for each in found if each["group"] == POOLED])]


def ranking_parts(rankings: Sequence[Row]) -> Iterator[str]:
    """The parts of a page, from the entries of `evaluation.steps.rankings:rankings`."""
    models = [_Model(arm_label(each, scorer), each, scorer) for each in rankings for scorer in each["scorers"]]
    groups = [group for ranking in rankings for group in ranking["groups"]]
    ranked = [group["group"] for group in groups if any(own["auc"] is not None for own in group["scorers"].values())]
    kinds = [kind for kind in dict.fromkeys(ranked) if kind not in (MACRO, POOLED)]
    yield from ("## Ranking of true and untrue steps", _LEGEND)
    areas = [[*model.place(), *model.cells("auc", [MACRO, *kinds, POOLED], ".3f")] for model in models]
    yield table(["reward model", "judged steps", "seeds", *map(title, (MACRO, *kinds, POOLED))], areas)
    yield "### Gain over the mean log-probability"
    gains = [[model.name, *model.cells("auc_gain", [MACRO, *kinds], "+.3f")] for model in models]
    yield table(["reward model", *map(title, (MACRO, *kinds))], gains)
    yield from _against_first(models)
    yield from ("### Against training-free baselines", _BASELINES)
    header = ["mean of kinds", "score", f"+{LOGP}", LOGP, POSITION, ALL, f"+{ALL}", f"gain over {ALL}"]
    yield table(header, [[model.name, *model.baselines()] for model in models])
    yield from ("### Calibration", _ERRORS)
    errors = [[model.name, *model.errors([*kinds, POOLED])] for model in models]
    yield table(["reward model", *map(title, (*kinds, POOLED)), "agrees at 0"], errors)


def _against_first(models: Sequence[_Model]) -> Iterator[str]:
    """Paired tests over seeds of each reward model's macro AUC against the first one's, where there are several."""
    first, *others = [by_seed(model.ranking, MACRO, model.scorer) for model in models]
    rows, p = [], []
    for model, own in zip(models[1:], others, strict=True):
        test = over_seeds(own, first)
        if test.n > 1:
            bounds = "" if math.isnan(test.low) else f" [{test.low:+.3f}, {test.high:+.3f}]"
            seeds = _listed([seed for seed in own if seed in first])
            rows.append([model.name, seeds, f"{test.difference:+.3f}{bounds}", p_value(test.p)])
            p.append(test.p)
    if rows:
        yield f"Mean of kinds, against {models[0].name} on the same seeds:"
        rows = [[*row, p_value(adjusted)] for row, adjusted in zip(rows, holm(p), strict=True)]
        yield table(["reward model", "seeds", "difference over seeds", "p seeds", "Holm"], rows)


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.3f}" if known else MISSING
