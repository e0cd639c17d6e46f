"""Benchmarks set the number of threads of their process; the tests after them have the one thread of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread_again() -> Iterator[None]:
    yield
    torch.set_num_threads(1)
