"""Progress bars with rate and time left; quiet without a terminal."""

from __future__ import annotations

import os
import sys
from typing import Any

from tqdm import tqdm

from common.plain_text import one_line


def quiet_without_terminal() -> None:
    """Disable the progress bars of the Hugging Face libraries; call it before they are imported."""
    if sys.stderr is None or not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def progress_bar(total: int | None, label: str, unit: str = "it") -> tqdm[Any]:
    """A bar to `update(n)`, used as a context manager; draws nothing where stderr is no terminal."""
    return tqdm(total=total, desc=one_line(label), unit=unit, disable=None, dynamic_ncols=True, leave=False)
