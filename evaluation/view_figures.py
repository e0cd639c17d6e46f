"""Figures of a page as SVG: drawn by matplotlib, coloured by the page (dark or light), the same bytes every time."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from evaluation.tables import METRICS

# Okabe and Ito's colours that stand out on black and on white; markers tell series apart without colour.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "osD^vP"
_STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "prorag",
    "text.parse_math": False,  # names are not formulas
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
_INK = "#123456"  # stands for the page's own text colour

Series = Mapping[str, Sequence[tuple[float, float]]]  # by name: points (x, y)


def results_figure(rows: Sequence[Mapping[str, Any]]) -> str:
    """EM and F1 of some evaluations on one dataset in percent, with their intervals."""
    shown = [metric for metric in ("em", "f1") if any(row.get(metric) is not None for row in rows)]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7.5, 0.8 + 0.38 * len(rows)))
        axes = figure.subplots()
        for place, metric in enumerate(shown):
            for line, row in enumerate(rows):
                if (value := row.get(metric)) is None:
                    continue
                low, high = (value if row.get(f"{metric}_{end}") is None else row[f"{metric}_{end}"] for end in _ENDS)
                style = {"color": _COLOURS[place], "marker": _MARKERS[place]}
                style |= {"label": METRICS[metric]} if line == 0 else {}
                height = line + 0.16 * (place - (len(shown) - 1) / 2)
                error = [[100 * max(0, value - low)], [100 * max(0, high - value)]]
                axes.errorbar([100 * value], [height], xerr=error, capsize=3, linestyle="none", **style)
        axes.set_yticks(range(len(rows)), [_name(row["stage"]) for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel("percent, with 95 % intervals over questions")
        axes.grid(axis="x", alpha=0.25)
        if shown:
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        return _svg(figure, "EM and F1 of each evaluation with intervals")


def curves_figure(panels: Mapping[str, Series]) -> str:
    """A small chart for each tag: its value by update, a line for each stage."""
    columns = min(3, len(panels))
    lines = math.ceil(len(panels) / columns)
    stages = {stage: place for place, stage in enumerate(dict.fromkeys(s for p in panels.values() for s in p))}
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(3.4 * columns, 2.3 * lines + 0.5), layout="constrained")
        grid = figure.subplots(lines, columns, squeeze=False).flat
        for axes, (title, series) in zip(grid, panels.items(), strict=False):
            for stage, points in series.items():
                place = stages[stage]
                _line(axes, points, place, stage)
            axes.set_title(_name(title), fontsize=10)
            axes.grid(alpha=0.25)
        for axes in list(figure.axes)[len(panels) :]:
            axes.set_axis_off()
        handles = {label: h for a in figure.axes for h, label in zip(*a.get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
        return _svg(figure, f"Curves by update: {', '.join(panels)}")


def auc_figure(groups: Sequence[Mapping[str, Any]]) -> str:
    """AUC of each scorer within each kind of step, with intervals; .5 is chance."""
    names = list(groups[0]["scorers"])
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7.5, 0.9 + 0.5 * len(groups)))
        axes = figure.subplots()
        for place, name in enumerate(names):
            known = [(line, g["scorers"][name]) for line, g in enumerate(groups) if _auc(g, name) is not None]
            if known:
                heights = [line + 0.7 * (place + 0.5) / len(names) - 0.35 for line, _ in known]
                values = [figures["auc"] for _, figures in known]
                ends = [[abs(f["auc"] - (f.get(f"auc_{end}") or f["auc"])) for _, f in known] for end in _ENDS]
                style = {"color": _COLOURS[place % 6], "marker": _MARKERS[place % 6], "label": _name(name)}
                axes.errorbar(values, heights, xerr=ends, capsize=2, markersize=4, linestyle="none", **style)
        axes.axvline(0.5, color=_INK, linestyle=":", alpha=0.6)
        axes.set_yticks(range(len(groups)), [_name(f"{g['group']} (n {g['n']})") for g in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_xlabel("AUC of true against untrue steps")
        axes.grid(axis="x", alpha=0.25)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        return _svg(figure, "AUC of scores by kind of step")


def reliability_figure(groups: Sequence[Mapping[str, Any]]) -> str:
    """Reliability: the share of true steps by the predicted probability, a line for each kind of step."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.5, 3.6))
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=_INK, linestyle=":", alpha=0.6)
        for place, group in enumerate(groups):
            bins = group["bins"]
            pairs = zip(bins["predicted"], bins["true"], strict=True)
            points = [(x, y) for x, y in pairs if x is not None and y is not None]
            _line(axes, points, place, f"{group['group']} (n {group['n']})")
        axes.set_xlabel("predicted share of true steps")
        axes.set_ylabel("observed share")
        axes.grid(alpha=0.25)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        return _svg(figure, "Reliability of the score by kind of step")


_ENDS = ("low", "high")


def _auc(group: Mapping[str, Any], name: str) -> float | None:
    return group["scorers"].get(name, {}).get("auc")


def _line(axes: Axes, points: Sequence[tuple[float, float]], place: int, label: str) -> None:
    style = {"color": _COLOURS[place % 6], "marker": _MARKERS[place % 6], "markersize": 4, "linewidth": 1.4}
    style["markevery"] = max(1, len(points) // 20)
    axes.plot([x for x, _ in points], [y for _, y in points], label=_name(label), **style)


def _name(text: str) -> str:
    """A label that matplotlib takes as it is: one line, and no leading underscore, which would hide it."""
    line = " ".join(text.split())[:60]
    return f" {line}" if line.startswith("_") else line


def _svg(figure: Figure, title: str) -> str:
    """The figure for the inside of a page: sized by it, in its text colour, with a title for screen readers."""
    for axes in figure.axes:
        axes.set_facecolor("none")
        for text in [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]:
            text.set_color(_INK)
        axes.tick_params(colors=_INK)
        for spine in axes.spines.values():
            spine.set_color(_INK)
    for legend in _legends(figure):
        for text in legend.get_texts():
            text.set_color(_INK)
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    opening, _, rest = svg.partition(">")
    opening = re.sub(r' (?:width|height)="[^"]*"', "", opening)
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', opening)[1])  # pyright: ignore[reportOptionalSubscript]
    return f'{opening} role="img" aria-label="{escape(title)}" style="max-width:{width * 4 / 3:.0f}px">{rest}'


def _legends(figure: Figure) -> Iterator[Any]:
    yield from figure.legends
    yield from (legend for axes in figure.axes if (legend := axes.get_legend()) is not None)
