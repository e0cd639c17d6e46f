"""The page of one step ranking as Markdown: what the scores add, within kinds first, then how they are calibrated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.steps.step_auc import ALL, KIND, LOGP, MACRO, POOLED, POSITION, combined, title
from evaluation.tables import MISSING, table

Group = Mapping[str, Any]

_CALIBRATION_LEGEND = (
    "Expected calibration error of the score read as log-odds that a step is true: the mean distance between the "
    "predicted and the observed share of true steps, over ten bins, with a 95 % bootstrap interval over questions. "
    "Last column: how often a score above 0 agrees with the truth."
)


def page(groups: Sequence[Group], calibrations: Mapping[str, Sequence[Group]]) -> str:
    """Page of `measure_groups` of one run, and of `calibration` for each scorer by name."""
    *within, pooled = groups
    parts = ["# Ranking of true and untrue steps", *answers(groups, list(calibrations))]
    parts += [
        "AUC with a 95 % bootstrap interval over questions; .500 is chance. A dash: all steps are true, or none is."
        f" `{ALL}` and names with `+` are combined by logistic regression within a kind, cross-fitted over questions."
    ]
    parts += ["## Within kinds of step", _auc_table(within)]
    parts += [
        "## Pooled over kinds",
        f"To compare with `{POSITION}` and `{KIND}`, which know nothing of a step's content.",
        _auc_table([pooled]),
    ]
    if any(calibrations.values()):
        parts += ["## Calibration", _CALIBRATION_LEGEND, _calibration_table(calibrations)]
    return "\n\n".join(parts) + "\n"


def answers(groups: Sequence[Group], scorers: Sequence[str]) -> Iterator[str]:
    """A sentence for each scorer: its AUC within kinds, and what it adds to the mean log-probability."""
    macro = next((group for group in groups if group["group"] == MACRO), None)
    for name in scorers:
        if macro is None or macro["scorers"][name]["auc"] is None:
            yield f"`{name}`: there is nothing to rank, no kind of step has both true and untrue steps with a score."
            continue
        weakest = _least_gain(groups, name)
        gain = cell(macro, name, "auc_gain", "+.3f")
        yield (
            f"Within kinds of step `{name}` ranks true above untrue steps with an AUC of {cell(macro, name)} on the "
            f"mean of kinds, {gain} against the policy's mean log-probability (`{LOGP}`). "
            f"It gains least in steps of kind {weakest['group']}: {cell(weakest, name, 'auc_gain', '+.3f')}. "
            f"Combined, they gain {cell(macro, combined(name, LOGP), 'auc_gain', '+.3f')}. All baselines combined have "
            f"{cell(macro, ALL)}; to these it adds {cell(macro, combined(name, ALL), 'auc_gain_all', '+.3f')}."
        )


def _least_gain(groups: Sequence[Group], name: str) -> Group:
    kinds = [group for group in groups if group["group"] not in (MACRO, POOLED)]
    known = [group for group in kinds if group["scorers"][name]["auc_gain"] is not None]
    return min(known, key=lambda group: group["scorers"][name]["auc_gain"])


def _auc_table(groups: Sequence[Group]) -> str:
    """A row for each scorer; a column a group."""
    header = [f"{title(g['group'])} (n {g['n']}, {100 * g['true']:.0f} % true)" for g in groups]
    rows = [[name, *(cell(group, name) for group in groups)] for name in (groups[0]["scorers"] if groups else ())]
    return table(["scorer", *header], rows)


def _calibration_table(calibrations: Mapping[str, Sequence[Group]]) -> str:
    """A row a scorer, a column a kind of step and one for all."""
    names = list(dict.fromkeys(group["group"] for groups in calibrations.values() for group in groups))
    rows = []
    for scorer, groups in calibrations.items():
        found = {group["group"]: group for group in groups}
        agrees = f"{100 * found[POOLED]['accuracy_at_0']:.1f} %" if found else MISSING
        rows.append([scorer, *(figures(found.get(name), "ece") for name in names), agrees])
    return table(["scorer", *map(title, names), "agrees at 0"], rows)


def cell(group: Group, scorer: str, key: str = "auc", shown: str = ".3f") -> str:
    """A figure of a scorer with its intervals, a dash where there is none."""
    return figures(group["scorers"][scorer], key, shown)


def figures(found: Group | None, key: str, shown: str = ".3f") -> str:
    """A figure with its interval over questions, and that over seeds where there are several; a dash without one."""
    if found is None or found[key] is None:
        return MISSING
    text = format(found[key], shown)
    for bounds in (key, f"{key}_seeds"):
        low, high = found.get(f"{bounds}_low"), found.get(f"{bounds}_high")
        if low is not None and high is not None:
            text += f" [{low:{shown}}, {high:{shown}}]"
    return text
