"""The page of a run that failed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def write_failure_page(folder: Path) -> None:
    """Write the page of the run in `folder`, if that can be had: the run's own error counts, and none of the page's."""
    from evaluation.report.page import write_page  # with all that draws figures
    from evaluation.report.run import read_run

    with suppress(Exception):
        write_page(folder / "report.html", [read_run(folder)])
