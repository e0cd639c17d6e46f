"""Learning curves of a page, read from TensorBoard's events."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from evaluation.report.view_curves import curves, thinned
from evaluation.report.view_run import read_run
from tests.evaluation.report.view_fakes import experiment


def test_a_long_curve_has_evenly_spread_points_the_first_and_the_last_among_them() -> None:
    points = [(float(place), 2.0 * place) for place in range(1001)]
    kept = thinned(points, most=5)
    assert kept == [(0.0, 0.0), (250.0, 500.0), (500.0, 1000.0), (750.0, 1500.0), (1000.0, 2000.0)]
    assert thinned(points[:5], most=5) == points[:5]


def test_all_events_are_read_however_many(tmp_path: Path) -> None:
    """TensorBoard's reader keeps a random sample of long curves unless it is told otherwise."""
    artifact = tmp_path / "store" / "rl-1"
    artifact.mkdir(parents=True)
    folder = experiment(tmp_path, {"rl": artifact})
    writer = SummaryWriter(str(folder / "rl"))
    for update in range(12_001):
        writer.add_scalar("loss", float(update), update)
    writer.close()
    points = curves(read_run(folder))["loss"]["rl"]
    assert len(points) == 300
    assert points[0] == (0.0, 0.0)
    assert points[-1] == (12_000.0, 12_000.0)
    assert {round(later - earlier) for (earlier, _), (later, _) in pairwise(points)} <= {40, 41}
