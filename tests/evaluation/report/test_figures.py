"""Figures of a page: what is drawn, the same values as a table, and learning curves read from events."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from evaluation.report.figures import curves, result_figures, thinned
from evaluation.report.run import read_run
from tests.evaluation.report.fakes import experiment


def test_dots_have_their_intervals_and_lines_their_means_and_seeds() -> None:
    place = {"experiment": "exp", "stage": "eval", "dataset": "toy", "split": "dev", "em_low": 0.4, "em_high": 0.9}
    stopping = [
        place | {"seed": seed, "hops": hops, "em": em} for seed, hops, em in ((0, 1, 1.0), (0, 2, 0.5), (1, 1, 0.5))
    ]
    figures = result_figures({"rows": [place | {"seed": 0, "em": 0.5}], "stopping": stopping, "rankings": []})
    assert [*figures] == ["arms", "hops"], "no ranking"
    dot = {"value": 50.0, "low": 40.0, "high": 90.0, "seeds": (), "beside": {}}
    assert figures["arms"]["panels"] == {"toy/dev": {"exp:eval": dot}}
    line = figures["hops"]["panels"]["toy/dev: exact match, %"]["exp:eval"]
    assert line["points"] == [(1, 75.0), (2, 50.0)]
    assert line["seeds"] == [[(1, 100.0), (2, 50.0)], [(1, 50.0)]]


def test_a_long_curve_has_evenly_spread_points_the_first_and_the_last_among_them() -> None:
    points = [(float(place), 2.0 * place) for place in range(1001)]
    kept = thinned(points, 5)
    assert kept == [(0.0, 0.0), (250.0, 500.0), (500.0, 1000.0), (750.0, 1500.0), (1000.0, 2000.0)]
    assert thinned(points[:5], 5) == points[:5]


def test_all_events_are_read_however_many(tmp_path: Path) -> None:
    """TensorBoard's reader keeps a random sample of long curves unless it is told otherwise."""
    artifact = tmp_path / "store" / "rl-1"
    artifact.mkdir(parents=True)
    folder = experiment(tmp_path, {"rl": artifact})
    with SummaryWriter(str(folder / "rl")) as writer:
        for update in range(12_001):
            writer.add_scalar("loss", float(update), update)
    points = curves(read_run(folder))["loss"]["rl"]
    assert len(points) == 300
    assert (points[0], points[-1]) == ((0.0, 0.0), (12_000.0, 12_000.0))
    assert {round(later - earlier) for (earlier, _), (later, _) in pairwise(points)} <= {40, 41}
