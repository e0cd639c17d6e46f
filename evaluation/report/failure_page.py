"""The page of a run that failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def page_on_failure(folder: Path, alone: bool) -> Iterator[None]:
    """Write the page if the block raises. Of several ranks none does: the process that started them writes it."""
    try:
        yield
    except Exception:
        if alone:
            write_failure_page(folder)
        raise


def write_failure_page(folder: Path) -> None:
    """Write the page of the run in `folder`; the page's own errors are dropped, so that the run's is reported."""
    from evaluation.report.page import write_page  # with all that draws figures
    from evaluation.report.run import read_run

    with suppress(Exception):
        write_page(folder / "report.html", [read_run(folder)])
