"""The page of a run that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def page_on_failure(folder: Path, processes: int) -> Iterator[None]:
    """Where what is done within fails, write the page of the run in `folder`.

    One of several processes does not: they end each other at any moment. Who started them writes it.
    """
    try:
        yield
    except Exception:
        if processes == 1:
            _write(folder)
        raise


def page_of_launched(folder: Path, code: int) -> int:
    """Where the processes of a run failed at work, write its page; returns `code`, the exit status of theirs."""
    if code == 1:  # not 2, before any work, nor a signal
        _write(folder)
    return code


def _write(folder: Path) -> None:
    """Write the page, if that can be had: the run's own error counts, and none of the page's."""
    from evaluation.report.view_page import write_page  # with all that draws figures
    from evaluation.report.view_run import read_run

    with suppress(Exception):
        write_page(folder / "report.html", [read_run(folder)])
