"""Drawing of figures: style, panels, dots with intervals, lines with seeds. Same figures, same text of SVG."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.textpath import text_to_path

# Okabe & Ito 2008, orange and sky blue darker: each at least 3:1 on white and on a dark page.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#A67C00", "#2A93A5", "#000000", "#7B61C9")
# As many as have no factor in common, so that two lines of one colour differ in marker and dash.
MARKERS = "osD^vPX"
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (7, 2, 1, 2, 1, 2)))
GREY = "#777777"
_FONT = 9  # points
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "figures",  # names of elements do not change from run to run
    "text.parse_math": False,  # a name with two dollars is a name
    "font.size": _FONT,
    "axes.titlesize": 9,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": "#E5E5E5",
    "legend.frameon": False,
}
_TICKS = 8  # places that are all marked; more are left to the library
_ROW, _LINES = 0.24, 2.6  # inches: height of a row of dots and of a panel of lines
_ENTRY = 0.2  # inches: height of a row of a legend
_KEY, _GAP, _PAD = 2.8, 2.0, 0.8  # of a legend, in sizes of its font: a key with its distance, between columns, around


@dataclass(frozen=True)
class Dot:
    """A figure with its interval, the values of single seeds, and other figures to compare it with by name."""

    value: float
    low: float | None = None
    high: float | None = None
    seeds: Sequence[float] = ()
    beside: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """Values `by_seed[k][i]` at the places `x[i]`, NaN where a seed has none; drawn as their mean and one by one.

    Args:
        x: the places.
        by_seed: a list of values for each seed.
        sizes: weights of the points, which their areas show.
        reference: whether it is what others are compared with: thin, grey, several of them distinguished by their
            dashes.
    """

    x: Sequence[float]
    by_seed: Sequence[Sequence[float]]
    sizes: Sequence[float] | None = None
    reference: bool = False

    @property
    def mean(self) -> list[float]:
        """The mean over the seeds that have a value, NaN where none has."""
        columns = [[v for v in column if not math.isnan(v)] for column in zip(*self.by_seed, strict=True)]
        return [math.fsum(column) / len(column) if column else math.nan for column in columns]


def look(place: int) -> dict[str, Any]:
    """Colour, marker and dash of a line, by its place among all: neighbours differ without colour too."""
    return {
        "color": COLORS[place % len(COLORS)],
        "marker": MARKERS[place % len(MARKERS)],
        "ls": DASHES[place % len(DASHES)],
    }


def svg(draw: Callable[[Figure], None], title: str, *, width: float, height: float) -> str:
    """A drawing of `draw` as SVG; sizes in inches. Equal figures give equal text."""
    text = io.StringIO()
    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(wspace=0.06))
        draw(figure)
        figure.savefig(text, format="svg", metadata={"Title": title, "Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def legend_columns(labels: Sequence[str], width: float, most: int) -> int:
    """Number of legend columns that fit into so many inches: between 1 and `most`."""
    widths = [_KEY + _ems(label) for label in labels]
    for count in range(min(most, len(labels)), 1, -1):
        columns = np.array_split(np.array(widths), count)  # as the library fills them, column by column
        if sum(max(column) for column in columns) + (count - 1) * _GAP + _PAD <= width * 72 / _FONT:
            return count
    return 1


def _ems(label: str) -> float:
    """Width of a text in em."""
    return text_to_path.get_text_width_height_descent(label, FontProperties(size=_FONT), ismath=False)[0] / _FONT


@dataclass(frozen=True)
class Dots:
    """A figure with a panel for each entry, a row for each label: a dot, its interval, seeds and comparisons.

    Args:
        panels: dots by title of the panel and label; the panels share their rows.
        title: of the figure.
        axis: what the figures are.
        chance: where a line marks the value of a random score.
        limits: of the axis, in every panel; where absent, panels choose their own.
    """

    panels: Mapping[str, Mapping[str, Dot]]
    title: str
    axis: str
    chance: float | None = None
    limits: tuple[float, float] | None = None

    def svg(self) -> str:
        """The figure, drawn."""
        labels = list(dict.fromkeys(label for rows in self.panels.values() for label in rows))
        places = {label: len(labels) - number for number, label in enumerate(labels)}
        names = list(
            dict.fromkeys(name for rows in self.panels.values() for dot in rows.values() for name in dot.beside)
        )

        def draw(figure: Figure) -> None:
            axes = _axes(figure, len(self.panels), sharey=True)
            for panel, (name, rows) in zip(axes, self.panels.items(), strict=True):
                panel.set(title=name, xlabel=self.axis)
                panel.set_yticks([*places.values()], [*places])
                if self.limits is not None:
                    panel.set_xlim(self.limits)
                if self.chance is not None:
                    panel.axvline(self.chance, color=GREY, lw=0.8, ls=":")
                for label, dot in rows.items():
                    y = places[label]
                    if dot.seeds:  # above the interval, which would hide them
                        panel.scatter(dot.seeds, [y + 0.22] * len(dot.seeds), s=7, color=COLORS[0], alpha=0.5, lw=0)
                    if dot.low is not None and dot.high is not None:
                        panel.plot([dot.low, dot.high], [y, y], color=COLORS[0], lw=1.4)
                    panel.scatter([dot.value], [y], s=26, color=COLORS[0], label="_", zorder=3)
                    for number, other in enumerate(names):
                        if other in dot.beside:
                            at = [dot.beside[other]], [y]
                            panel.scatter(
                                *at, s=22, marker="D^sv"[number % 4], fc="none", ec=COLORS[1 + number], label=other
                            )
                panel.set_ylim(0.4, len(labels) + 0.6)
            _legend(figure, axes, columns)

        beside = max(1.6, 0.2 + max(map(_ems, labels), default=0.0) * _FONT / 72)  # inches of the longest label
        width, most = beside + _width(self.panels), len(self.panels) + 1
        columns = legend_columns(names, width, most)
        more = math.ceil(len(names) / columns) - math.ceil(len(names) / most)
        height = 0.9 + _ROW * len(labels) + (0.3 if names else 0) + _ENTRY * more
        return svg(draw, self.title, width=width, height=height)


@dataclass(frozen=True)
class Lines:
    """A figure with a panel for each entry, a line for each label: its mean, and faintly its seeds.

    Args:
        panels: lines by title of the panel and label.
        title: of the figure.
        x: what the places are.
        y: what the values are, or by panel.
        same_scale: whether the panels share the scale of their values.
        logarithmic: whether the places are on a logarithmic scale.
        shares: whether places and values are shares, which a line compares.
    """

    panels: Mapping[str, Mapping[str, Line]]
    title: str
    x: str
    y: str | Mapping[str, str]
    same_scale: bool = True
    logarithmic: bool = False
    shares: bool = False

    def svg(self) -> str:
        """The figure, drawn."""
        labels = list(dict.fromkeys(label for rows in self.panels.values() for label in rows))
        references = dict.fromkeys(
            label for rows in self.panels.values() for label, line in rows.items() if line.reference
        )
        dashes = dict(zip(references, itertools.cycle(DASHES[1:]), strict=False))

        def draw(figure: Figure) -> None:
            axes = _axes(figure, len(self.panels), sharey=self.same_scale)
            for panel, (name, rows) in zip(axes, self.panels.items(), strict=True):
                panel.set(title=name, xlabel=self.x)
                if panel is axes[0] or not self.same_scale:
                    panel.set_ylabel(self.y if isinstance(self.y, str) else self.y[name])
                if self.shares:
                    panel.plot([0, 1], [0, 1], color=GREY, lw=0.8, ls=":")
                    panel.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
                for label, line in rows.items():
                    if line.reference:
                        panel.plot(line.x, line.mean, color=GREY, lw=1, ls=dashes[label], label=label)
                    else:
                        _line(panel, label, line, **look(labels.index(label)))
                places = sorted({place for line in rows.values() for place in line.x})
                if self.logarithmic:
                    panel.set_xscale("log")
                if len(places) <= _TICKS:
                    panel.set_xticks(places, [f"{place:g}" for place in places])
                    panel.set_xticks([], minor=True)
            _legend(figure, axes, columns)

        width = 0.6 + _width(self.panels)
        columns = legend_columns(labels, width, len(self.panels) + 1)
        height = _LINES + _ENTRY * math.ceil(len(labels) / min(columns, len(self.panels)))
        return svg(draw, self.title, width=width, height=height)


def _line(panel: Axes, label: str, line: Line, *, color: str, marker: str, ls: Any) -> None:
    if len(line.by_seed) > 1:
        for values in line.by_seed:
            panel.plot(line.x, values, color=color, lw=0.7, alpha=0.3, marker=".", ms=4)
    mean = np.array(line.mean)
    known = ~np.isnan(mean)
    # The line's own markers are for the legend: on the panel their areas may have a meaning.
    own = {"marker": marker, "ms": 4.5, "markevery": []}
    panel.plot(np.array(line.x)[known], mean[known], color=color, lw=1.6, ls=ls, label=label, **own)
    sizes = 20 if line.sizes is None else 4 + 60 * np.array(line.sizes)[known] / max(line.sizes)
    panel.scatter(np.array(line.x)[known], mean[known], s=sizes, color=color, marker=marker, zorder=3)


def _width(panels: Sized) -> float:
    """Inches of all panels: a few are wider."""
    return max(2.6 * len(panels), 4.2)


def _axes(figure: Figure, count: int, *, sharey: bool) -> list[Axes]:
    return list(figure.subplots(1, count, squeeze=False, sharey=sharey)[0])


def _legend(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    """One legend of all panels below them, each label once."""
    found = {label: handle for panel in axes for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    if found:
        figure.legend([*found.values()], [*found], loc="outside lower center", ncols=columns)
