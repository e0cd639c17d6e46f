"""Heat maps: a cell for each row and column, coloured by its value around 0. Same values, same text of SVG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import fill

import numpy as np
from matplotlib.figure import Figure

from evaluation.pages.plots import svg

_ROW, _COLUMN, _LABELS = 0.27, 1.25, 3.0  # inches: height of a row, width of a column and of the labels of rows
_NAME, _LINE = 16, 0.15  # characters and inches of a line of a column's name: longer ones run into each other
_DARK = 0.6  # of the scale, from where text is white


@dataclass(frozen=True)
class Heat:
    """Values by row and column, with the text of each cell; a cell without an entry stays blank.

    Args:
        cells: (value, text) by row and column; rows and columns stand in the order in which they first come.
        title: of the figure.
        legend: what the values are.
        limit: the value, and its negative, from where colours change no more.
    """

    cells: Mapping[tuple[str, str], tuple[float, str]]
    title: str
    legend: str
    limit: float

    def svg(self) -> str:
        """The figure, drawn."""
        rows, columns = (list(dict.fromkeys(place[axis] for place in self.cells)) for axis in (0, 1))
        names = [fill(column, _NAME) for column in columns]
        values = np.full((len(rows), len(columns)), np.nan)
        for (row, column), (value, _) in self.cells.items():
            values[rows.index(row), columns.index(column)] = value

        def draw(figure: Figure) -> None:
            panel = figure.subplots()
            panel.grid(visible=False)
            drawn = panel.imshow(values, cmap="RdBu", vmin=-self.limit, vmax=self.limit, aspect="auto")
            panel.set_yticks(range(len(rows)), rows)
            panel.set_xticks(range(len(columns)), names)
            panel.xaxis.tick_top()
            panel.tick_params(length=0)
            for (row, column), (value, text) in self.cells.items():
                white = abs(value) > _DARK * self.limit
                at = columns.index(column), rows.index(row)
                panel.text(*at, text, ha="center", va="center", color="white" if white else "black")
            figure.colorbar(drawn, label=self.legend, shrink=0.9, aspect=40)

        width = _LABELS + _COLUMN * len(columns) + 0.9
        lines = max(name.count("\n") + 1 for name in names)
        return svg(draw, self.title, width=width, height=0.45 + _LINE * lines + _ROW * len(rows))
