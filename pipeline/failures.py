"""Errors of the machine, not of the code, as one line: a full disk, exhausted memory, limits, an unusable proxy."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator

from common.errors import ConfigError, UserError
from common.terminal import print_error

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE)
_RESUME = "run the same command to resume"
_ADVICE = {
    errno.EFBIG: f"raise the limit on file sizes (ulimit -f) and {_RESUME}",
    errno.ENOMEM: f"give it more memory and {_RESUME}",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), f"raise the limit on open files (ulimit -n) and {_RESUME}"),
    errno.EAGAIN: f"raise the limit on processes and threads (ulimit -u) and {_RESUME}",
    errno.EIO: f"look after the disk, and {_RESUME}",
}
_MESSAGES = (  # what libraries say of the same in errors of other types
    (r"no space left|file write failed|disk is full|failed writing file", "free some space"),
    (r"out of memory|(can(no|')t|not enough|unable|failed) .*(allocat|memory|map )|bad_alloc", "give it more memory"),
    (r"can't start new thread|resource temporarily unavailable|pthread", "raise the limit on threads (ulimit -u)"),
    (r"too many open files", "raise the limit on open files (ulimit -n)"),
    (r"socks proxy|proxy (url|protocol)", "pip install socksio, or unset ALL_PROXY and the like,"),
)
_LIBRARY_ERRORS = (RuntimeError, ImportError, OSError, ValueError)


def exit_code(work: Callable[[], object]) -> int:
    """Exit code of a command: 2 for a wrong setting, 1 for any other error, of which one line is printed, else 0.

    An error that is neither the user's nor the machine's is a bug, and raised.
    """
    try:
        work()
    except UserError as error:
        print_error(error)
        return 2 if isinstance(error, ConfigError) else 1
    except Exception as error:
        if (line := machine_failure(error)) is None:
            raise
        print_error(line)
        return 1
    return 0


def machine_failure(error: BaseException) -> str | None:
    """Message of a machine's failure, with the remedy; None where the error is of another kind."""
    for cause in _chain(error):
        if isinstance(cause, MemoryError):
            return f"out of memory: {_ADVICE[errno.ENOMEM]}"
        limit = isinstance(cause, OSError) and cause.errno in (*_FULL, *_ADVICE)
        known = limit or (cause is error and getattr(error, "filename", None) is not None)  # not what was caught before
        if isinstance(cause, OSError) and known and cause.strerror:
            advice = f"; {_ADVICE[cause.errno]}" if cause.errno in _ADVICE else ""
            place = cause.filename or ("writing" if cause.errno in _FULL else "the machine")
            return f"{place}: {cause.strerror}{advice}"
    for cause in _chain(error):
        for pattern, advice in _MESSAGES if isinstance(cause, _LIBRARY_ERRORS) else ():
            if re.search(pattern, str(cause), re.IGNORECASE):
                return f"{str(cause).splitlines()[0][:200]}; {advice} and {_RESUME}"
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that led to it: a library may hide the system's own behind one of its own."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
