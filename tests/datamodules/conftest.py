"""What tests of trees, pairs and labels speak."""

from __future__ import annotations

import pytest

from envs.protocols.prorag import ProRAG
from tests.tiny import byte_tokenizer


@pytest.fixture(scope="module")
def protocol() -> ProRAG:
    return ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type]
