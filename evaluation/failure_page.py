"""The page of a run that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def page_on_failure(folder: Path, processes: int) -> Iterator[None]:
    """Where what is done within fails, write the page of the run in `folder`, if that can be had: the error counts.

    Of several processes none does: they end each other at any moment.
    """
    try:
        yield
    except Exception:
        if processes == 1:
            from evaluation.view_page import write_page  # with all that draws figures
            from evaluation.view_run import read_run

            with suppress(Exception):
                write_page(folder / "report.html", [read_run(folder)])
        raise
