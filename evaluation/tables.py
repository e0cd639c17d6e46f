"""Markdown tables, padded so that they read as plain text too, and the format of figures in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from common.plain_text import one_line
from evaluation.statistics import across_seeds

METRICS = {
    "em": "EM",
    "f1": "F1",
    "cover": "cover",
    "judged": "judged right",
    "coverage": "answered",
    "selective_em": "EM of answered",
    "flawed": "flawed",
    "unresolved": "unresolved",
    "osr": "OSR",
    "usr": "USR",
    "valid_steps": "valid steps",
    "valid_episodes": "valid episodes",
    "true_steps": "true steps",
    "recall": "recall",
    "premature": "premature",
    "late": "late",
    "searches": "searches",
    "tokens": "tokens",
    "read_tokens": "tokens read",
    "seconds": "seconds",
}
MEANINGS = {
    "n": "questions scored",
    "EM": "exact match: the prediction is an answer",
    "F1": "token F1 of the prediction and the nearest answer",
    "cover": "the prediction contains an answer",
    "flawed": "right answer with at least one untrue step, also where only the retriever missed the passage",
    "unresolved": "right answer not established by the steps",
    "OSR": "over-search rate: share of searches for a fact that the policy was taught",
    "USR": "under-search rate: share of statements without a search that are untrue",
    "valid steps": "share of steps in format",
    "valid episodes": "share of episodes with all steps in format",
    "true steps": "share of steps that are true: by the facts of the embedded world, or by a dataset's own reasoning",
    "recall": "share of gold documents retrieved, 0 for a question without a search where there is a retriever",
    "premature": "answered without having found every gold document",
    "late": "searched again after finding them all",
    "searches": "queries a question",
    "tokens": "number sampled a question, by all models; a dash for a teacher",
    "tokens read": "number a question, by scorers, encoders and compressors",
    "judged right": "a judge of answers calls it right, where it gave a verdict",
    "answered": "share of questions not answered by I do not know",
    "EM of answered": "exact match of these",
    "seconds": "summed over processes",
}
UNITS = (
    "Percent, except searches, seconds and AUC. Brackets: 95 % bootstrap interval over questions. "
    "A dash: does not apply."
)
LEGEND = f"{UNITS} " + " ".join(f"{name[0].upper()}{name[1:]}: {meaning}." for name, meaning in MEANINGS.items())
MISSING = "–"
_WHOLE = frozenset(("tokens", "read_tokens", "seconds"))
_PERCENT = frozenset(METRICS) - _WHOLE - {"searches"}


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, labels: int = 1) -> str:
    """A Markdown table with padded cells: the first `labels` columns to the left, figures to the right."""
    cells = [[_cell(text) for text in row] for row in (header, *rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        " | ".join(
            text.ljust(width) if column < labels else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    rule = " | ".join("-" * w if column < labels else "-" * (w - 1) + ":" for column, w in enumerate(widths))
    return "\n".join(f"| {line} |" for line in (lines[0], rule, *lines[1:]))


def metrics_table(labels: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Result rows with a column for each of `labels` (key -> heading), n, and each metric that any row has."""
    return table(*metrics_cells(labels, rows), labels=len(labels))


def metrics_cells(labels: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of `metrics_table`."""
    metrics = [metric for metric in METRICS if any(row.get(metric) is not None for row in rows)]
    header = [*labels.values(), "n", *(METRICS[metric] for metric in metrics)]
    cells = [
        [*(str(row[key]) for key in labels), str(row["n"]), *(_estimate_of(metric, row) for metric in metrics)]
        for row in rows
    ]
    return header, cells


def seeds_table(labels: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> str:
    """`mean ± sd` of each metric over the seeds that have it."""
    metrics = [metric for metric in METRICS if any(row.get(metric) is not None for row in rows)]
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in labels), []).append(row)
    cells = [
        [*place, str(len(group)), *(spread(metric, [row.get(metric) for row in group]) for metric in metrics)]
        for place, group in groups.items()
    ]
    return table([*labels.values(), "seeds", *(METRICS[metric] for metric in metrics)], cells, labels=len(labels))


def spread(metric: str, values: Sequence[float | None]) -> str:
    """A metric's `mean ± sd` over the seeds that have it; the mean alone of one."""
    mean, sd = across_seeds([math.nan if value is None else value for value in values])
    return figure(metric, mean) if math.isnan(sd) else f"{figure(metric, mean)} ± {figure(metric, sd)}"


def figure(metric: str, value: float | None, *, signed: bool = False) -> str:
    """A metric as text: shares in percent, a dash where it is missing."""
    if value is None or math.isnan(value):
        return MISSING
    scaled = value * 100 if metric in _PERCENT else value
    return f"{scaled:{'+' if signed else ''}.{0 if metric in _WHOLE else 1 if metric in _PERCENT else 2}f}"


def estimate(metric: str, value: float | None, low: float | None, high: float | None, *, signed: bool = False) -> str:
    """A metric with its interval, where it has one: `46.7 [41.2, 52.1]`."""
    shown, bounds = (
        figure(metric, value, signed=signed),
        [figure(metric, bound, signed=signed) for bound in (low, high)],
    )
    return shown if MISSING in bounds else f"{shown} [{', '.join(bounds)}]"


def p_value(p: float) -> str:
    """A probability to three digits, a dash where there was no test."""
    return MISSING if math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"


def _estimate_of(metric: str, row: Mapping[str, Any]) -> str:
    return estimate(metric, row.get(metric), row.get(f"{metric}_low"), row.get(f"{metric}_high"))


def _cell(text: str) -> str:
    """Text on one line, `|` escaped."""
    return one_line(text).replace("|", "\\|")
