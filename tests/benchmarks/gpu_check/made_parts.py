"""Parts of a check that end in every way."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.gpu_check.parts import Row, Size


def good(size: Size) -> Iterator[Row]:
    yield {"device": size.device, "error": float("nan")}


def breaks(size: Size) -> Iterator[Row]:
    yield {"row": 1}
    raise RuntimeError("no such kernel")


def hangs(size: Size) -> Iterator[Row]:
    yield {"row": 1}
    time.sleep(600)
