"""What the machine lacks is one line, and a bug of the code is none of it."""

from __future__ import annotations

import errno

import pytest

from common.errors import ConfigError, DataError
from pipeline.failures import exit_code, machine_failure


def hidden(error: Exception, behind: Exception) -> Exception:
    behind.__context__ = error
    return behind


RESUME = "run the same command to resume"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "writing: No space left on device"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory", "a/b"), "a/b: Not a directory"),
        (
            OSError(errno.ENOMEM, "Cannot allocate memory"),
            f"the machine: Cannot allocate memory; give it more memory and {RESUME}",
        ),
        (
            OSError(errno.EMFILE, "Too many open files", "x"),
            f"x: Too many open files; raise the limit on open files (ulimit -n) and {RESUME}",
        ),
        (MemoryError(), f"out of memory: give it more memory and {RESUME}"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: 9 bytes.\nx"),
            "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: 9 bytes.; "
            f"give it more memory and {RESUME}",
        ),
        (
            RuntimeError("can't start new thread"),
            f"can't start new thread; raise the limit on threads (ulimit -u) and {RESUME}",
        ),
        (
            RuntimeError("unable to mmap 400 bytes from file </m>: Cannot allocate memory (12)"),
            f"unable to mmap 400 bytes from file </m>: Cannot allocate memory (12); give it more memory and {RESUME}",
        ),
        (
            ImportError("libtorch_cpu.so: failed to map segment from shared object"),
            f"libtorch_cpu.so: failed to map segment from shared object; give it more memory and {RESUME}",
        ),
        (
            hidden(OSError(errno.ENOSPC, "No space left on device"), RuntimeError("unexpected pos 64 vs 0")),
            "writing: No space left on device",
        ),
        (
            ImportError("Using SOCKS proxy, but the 'socksio' package is not installed. Make sure"),
            "Using SOCKS proxy, but the 'socksio' package is not installed. Make sure; pip install socksio, or unset "
            f"ALL_PROXY and the like, and {RESUME}",
        ),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "writing: Broken pipe"),
        (KeyError("a bug"), None),
        (RuntimeError("shapes (3,) and (4,) do not match"), None),
        (hidden(FileNotFoundError(errno.ENOENT, "No such file", "x"), KeyError("x")), None),
        (OSError("a library's own words"), None),
    ],
)
def test_the_line_of_an_error(error: Exception, line: str | None) -> None:
    assert machine_failure(error) == line


def fails(error: Exception) -> None:
    raise error


def test_a_command_ends_with_a_line_and_a_code_and_a_bug_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    errors = ConfigError("no such setting"), DataError("no such row"), MemoryError()
    assert [exit_code(lambda error=error: fails(error)) for error in errors] == [2, 1, 1]
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["error: no such setting", "error: no such row"]
    assert lines[2].startswith("error: out of memory: ")
    assert exit_code(lambda: None) == 0
    with pytest.raises(KeyError):
        exit_code(lambda: fails(KeyError("a bug")))
