"""Progress bars with rate and time left; quiet without a terminal."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm

from common.plain_text import one_line


def progress_bar(total: int | None, label: str, unit: str = "it") -> tqdm[Any]:
    """A bar to `update(n)`, used as a context manager; draws nothing where stderr is no terminal."""
    return tqdm(total=total, desc=one_line(label), unit=unit, disable=None, dynamic_ncols=True, leave=False)
