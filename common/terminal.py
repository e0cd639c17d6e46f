"""Terminal output that text from elsewhere cannot control: printed lines, error lines, log lines."""

from __future__ import annotations

import io
import logging
import os
import sys

from common.plain_text import visible


class _VisibleRecord(logging.LogRecord):
    """A log record whose message cannot act on a terminal: models, datasets and servers write parts of it."""

    def getMessage(self) -> str:
        return visible(super().getMessage())


def prepare_terminal() -> None:
    """Escape control characters in log lines, and make output streams accept any character and survive being closed.

    Call it before Hugging Face libraries are imported: without a terminal they draw no bars.
    """
    logging.setLogRecordFactory(_VisibleRecord)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by who started this process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (as long as the process)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def say(text: str) -> None:
    """Print a text at once."""
    print(visible(text), flush=True)


def flush_output() -> None:
    """Flush the output streams; text that a full disk or a closed pipe rejects is dropped, since that was reported."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except OSError:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (as long as the process)


def error_line(error: object) -> str:
    """`error: what went wrong`, on one line."""
    return f"error: {' '.join(line.strip() for line in visible(str(error)).splitlines())}"


def print_error(error: object) -> None:
    """Print the line of an error to stderr."""
    print(error_line(error), file=sys.stderr, flush=True)
