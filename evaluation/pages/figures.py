"""The figures of results by name, drawn from frozen results alone: a page or a run's report says which it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from common.errors import DataError
from evaluation.pages.arm_names import named
from evaluation.pages.plots import Dots, Lines
from evaluation.pages.ranking_figures import auc_by_kind, learning_curves, reliability
from evaluation.pages.result_figures import arms, by_hops, curves, sweep

Results = Mapping[str, Any]

# Made of `rows`, `stopping`, `curves` and `rankings` of evaluation.pages.frozen; each has no panel where they lack it.
FIGURES: dict[str, Callable[[Results], Dots | Lines]] = {
    "arms": arms,
    "auc": auc_by_kind,
    "curves": curves,
    "hops": by_hops,
    "learning": learning_curves,
    "reliability": reliability,
    "sweep": sweep,
}
_CAPTIONS = {
    "arms": "Exact match by arm: mean and 95 % interval, single seeds faint.",
    "auc": "AUC of true against untrue steps within each kind of step: mean and 95 % interval, dotted: chance.",
    "curves": "Exact match on development questions by sampled tokens: means, single seeds faint.",
    "heat": "Arms by condition: difference in exact match to the baseline; ● and ○: significance, see below.",
    "hops": "When policies stop, by the number of hops: means, single seeds faint.",
    "learning": "AUC within each kind of step by the number of judged steps: means, single seeds faint.",
    "reliability": "Reliability: share of true steps by the share that scores predict; areas show how many steps.",
    "sweep": "Exact match by the number that the arms differ in: means, single seeds faint.",
}


def chosen(asked: str, results: Results) -> Dots | Lines:
    """A figure; `asked` is its name, or `<name>=<arm>,<arm>` for some arms or experiments.

    Raises:
        DataError: there is no such figure, or the results of these arms hold nothing for it.
    """
    name, _, names = asked.partition("=")
    if name not in FIGURES:
        raise DataError(f"no figure is called {name!r}; there are: {', '.join(FIGURES)}")
    wanted = names.split(",") if names else []
    parts = ("rows", "stopping", "curves", "rankings")
    drawn = {part: [row for row in results.get(part, []) if _is_one_of(row, wanted)] for part in parts}
    figure = FIGURES[name](named({**drawn, "names": results.get("names", {})}))
    if not figure.panels:
        of = f" of {names}" if names else ""
        raise DataError(f"the results{of} hold nothing for the figure {name!r}: freeze them again, or leave it out")
    return figure


def image(asked: str, path: str) -> str:
    """The Markdown that shows a figure; its caption is the alternative text and the line below."""
    title, _, rest = _CAPTIONS[asked.partition("=")[0]].partition(": ")
    return f"![{title}]({path})\n*{title}: {rest}*"


def file_name(asked: str) -> str:
    """File name of a figure, without folder."""
    return asked.translate(str.maketrans("=,:/", "----")) + ".svg"


def _is_one_of(row: Mapping[str, Any], wanted: list[str]) -> bool:
    named = row["experiment"], f"{row['experiment']}:{row['stage']}", row.get("arm")
    return not wanted or not {*named}.isdisjoint(wanted)
