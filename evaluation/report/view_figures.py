"""Figures inside a page: those of the results pages, and curves by update, in the page's own colours."""

from __future__ import annotations

import math
import re
from html import escape, unescape

from matplotlib.figure import Figure

from evaluation.pages.figures import FIGURES
from evaluation.pages.plots import legend_columns, look, svg
from evaluation.pages.ranking_figures import auc_panels, reliability_panels
from evaluation.pages.result_figures import EM, arms_panels, hops_panels
from evaluation.report.view_text import Row
from evaluation.report.view_values import Curves, dot_values, line_values

_COLUMNS, _WIDTH = 3, 9.5  # panels beside each other, inches of a figure of curves
_MARKED = 20  # points of a line that have a marker
_SMALLEST = 0.8  # of its size, at which its text of 9 points is still read


def result_figures(results: Row) -> dict[str, Row]:
    """Those figures of the results pages that these results have, `drawn` and with their `values`, by name.

    The values of `arms` are the table of results, but for means over several seeds.
    """
    by_arm = arms_panels(results)
    seeds = any(dot.seeds for rows in by_arm.values() for dot in rows.values())
    values = {
        "arms": dot_values(by_arm, ("dataset", "arm", EM), digits=1) if seeds else None,
        "hops": line_values(hops_panels(results)[0], ("figure", "arm", "hops", "value")),
        "auc": dot_values(auc_panels(results), ("kind of step", "score", "AUC")),
        "reliability": line_values(reliability_panels(results), ("kind of step", "score", "predicted", "true")),
    }
    drawn = {name: text for name in values if (text := FIGURES[name](results)) is not None}
    return {name: {"drawn": inline(text, name), "values": values[name]} for name, text in drawn.items()}


def curves_figure(curves: Curves, name: str) -> str:
    """A small chart for each tag: its value by update, a line for each stage. `name` as for `inline`."""
    stages = list(dict.fromkeys(stage for series in curves.values() for stage in series))
    rows, columns = math.ceil(len(curves) / _COLUMNS), legend_columns(stages, _WIDTH, 4)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(rows, _COLUMNS, squeeze=False).flatten()
        found = {}
        for place, (panel, (tag, series)) in enumerate(zip(panels, curves.items(), strict=False)):
            panel.set_title(tag)
            if place + _COLUMNS >= len(curves):  # the lowest of its column
                panel.set_xlabel("updates")
            for stage, points in series.items():
                every = max(1, len(points) // _MARKED)
                x, y = zip(*points, strict=True)
                (found[stage],) = panel.plot(x, y, lw=1.4, ms=4, markevery=every, **look(stages.index(stage)))
        for panel in panels[len(curves) :]:
            panel.set_axis_off()
        figure.legend([found[stage] for stage in stages], stages, loc="outside lower center", ncols=columns)

    height = 2.2 * rows + 0.5 + 0.2 * math.ceil(len(stages) / columns)
    return inline(svg(draw, f"By update: {', '.join(curves)}", width=_WIDTH, height=height), name)


def inline(drawn: str, name: str) -> str:
    """A figure of `evaluation.pages.plots` for the inside of a page.

    Black becomes the page's text colour, white its paper, and the grid its lines. Names of elements that nothing refers
    to go, the others begin with the figure's `name`, which no other on the page has. Its title is told to screen
    readers. It gets no smaller than its text can be read: what is around it scrolls.
    """
    title = re.search(r"<dc:title>(.*?)</dc:title>", drawn, re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"<title>.*?</title>", "", text, count=1, flags=re.DOTALL)
    for colour, own in (("#000000", "currentColor"), ("#ffffff", "none"), ("#e5e5e5", "var(--line)")):
        text = re.sub(rf"(fill|stroke): {colour}\b", rf"\1: {own}", text, flags=re.IGNORECASE)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{name}-", text)
    opening, _, rest = text.partition(">")
    width = re.search(r'width="([\d.]+)pt"', opening)
    opening = re.sub(r' (?:width|height)="[^"]*"', "", opening)
    pixels = float(width[1]) * 4 / 3 if width else 0.0
    shown = f' style="max-width:{pixels:.0f}px;min-width:{pixels * _SMALLEST:.0f}px"' if width else ""
    named = escape(unescape(title[1]) if title else "figure", quote=True)
    return f'{opening} role="img" aria-label="{named}"{shown}>{rest}'
