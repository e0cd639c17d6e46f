"""Compare finished runs: `python -m evaluation.pages.compare RUN [RUN …] [--baseline NAME] [--metric f1]`.

A RUN is as for `evaluation.pages.freeze`. Each evaluation is an arm, named `<run>:<stage>`; the first is the baseline
unless one is named. The tables are those of a page of results, of one figure.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from common.errors import DataError, UserError
from common.terminal import error_line, say
from evaluation.pages.arm_tables import difference_parts, results_parts
from evaluation.pages.evaluations import baseline_of, evaluations, results_of
from evaluation.results import Arm, find_arms, predictions
from evaluation.scoring import RATES
from evaluation.tables import LEGEND


def compare(arms: Sequence[Arm], *, baseline: str | None = None, metric: str = "em") -> str:
    """Markdown tables, one a dataset, of `metric` for each arm, and its difference to the baseline's.

    Raises:
        DataError: two runs share a name; no arm, or more than one, is called `baseline`; predictions are missing or
            lack the metric as a number; an arm and the baseline answered different questions.
    """
    measured = evaluations(arms, lambda arm: arm.name)
    results = results_of(measured, RATES.get(metric, (metric,)))
    if not any(row["values"] for row in results["rows"]):
        asked = ((each, row) for each in measured for row in results["rows"] if row["arm"] == each.arm)
        read = (one for each, row in asked for one in predictions(each.artifact, row["dataset"], row["split"]))
        known = dict.fromkeys(name for one in read for name, value in one.items() if isinstance(value, int | float))
        raise DataError(f"no question has the figure {metric!r}; there are: {', '.join(known)}")
    base = baseline_of(measured, baseline)
    results |= {"baseline": base, "arms": []}
    legend, *tables = results_parts(results, [metric])
    return "\n\n".join(
        [" ".join(filter(None, [f"Baseline: {base}.", legend, LEGEND])), *tables, *difference_parts(results, [metric])]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m evaluation.pages.compare", description="Compare finished runs.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="runs/<experiment>[/seed<k>][:<stage>]")
    parser.add_argument("--baseline", metavar="NAME", help="arm, experiment or stage (default: the first arm)")
    parser.add_argument("--metric", default="em", help="a figure that predictions hold per question (default: em)")
    options = parser.parse_args(arguments)
    try:
        arms = [arm for run in options.runs for arm in find_arms(run)]
        text = compare(arms, baseline=options.baseline, metric=options.metric)
    except UserError as error:
        sys.exit(error_line(error))
    say(text)


if __name__ == "__main__":
    main()
