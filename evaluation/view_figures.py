"""Figures inside a page: those of the results pages, and curves by update, in the page's own colours."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape

from matplotlib.figure import Figure

from evaluation.plots import COLORS, svg

_COLUMNS = 3
_MARKERS = "osD^vPX*"  # tell stages apart without colour
_MARKED = 20  # points of a line that have a marker

Curves = Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]  # by tag and stage: points (update, value)


def curves_figure(curves: Curves) -> str:
    """A small chart for each tag: its value by update, a line for each stage."""
    stages = list(dict.fromkeys(stage for series in curves.values() for stage in series))
    rows = math.ceil(len(curves) / _COLUMNS)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(rows, _COLUMNS, squeeze=False).flatten()
        found = {}
        for panel, (tag, series) in zip(panels, curves.items(), strict=False):
            panel.set_title(tag)
            for stage, points in series.items():
                place, every = stages.index(stage), max(1, len(points) // _MARKED)
                look = {"color": COLORS[place % len(COLORS)], "marker": _MARKERS[place % len(_MARKERS)]}
                x, y = zip(*points, strict=True)
                (found[stage],) = panel.plot(x, y, lw=1.4, ms=4, markevery=every, **look)
        for panel in panels[len(curves) :]:
            panel.set_axis_off()
        figure.legend([found[stage] for stage in stages], stages, loc="outside lower center", ncols=4)

    return inline(svg(draw, f"By update: {', '.join(curves)}", width=9.5, height=2.2 * rows + 0.5))


def inline(drawn: str) -> str:
    """A figure of `evaluation.plots` for the inside of a page.

    Black becomes the page's text colour, white its paper, and the grid its lines; names of elements that nothing refers
    to go, since a page has several figures; its title is told to screen readers.
    """
    title = re.search(r"<dc:title>(.*?)</dc:title>", drawn, re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"<title>.*?</title>", "", text, count=1, flags=re.DOTALL)
    for colour, own in (("#000000", "currentColor"), ("#ffffff", "none"), ("#e5e5e5", "var(--line)")):
        text = re.sub(rf"(fill|stroke): {colour}\b", rf"\1: {own}", text, flags=re.IGNORECASE)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", text)
    opening, _, rest = text.partition(">")
    width = re.search(r'width="([\d.]+)pt"', opening)
    opening = re.sub(r' (?:width|height)="[^"]*"', "", opening)
    shown = f' style="max-width:{float(width[1]) * 4 / 3:.0f}px"' if width else ""
    named = escape(title[1] if title else "figure", quote=True)
    return f'{opening} role="img" aria-label="{named}"{shown}>{rest}'
