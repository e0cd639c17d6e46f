"""What an agent is built from, and the passages that its answers rest on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from envs.types import Document, Episode, Hit, Step
from examples.agents import retriever_on, sources
from tests.tiny import question

ONE, TWO, THREE = (Document(f"d{n}", f"Title {n}", "Text.") for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("trained_with", "expected"),
    [
        ({}, {"target": "envs.retrievers.bm25:BM25", "corpus": "NEW"}),
        ({"target": "B", "corpus": "old", "b": 1.0}, {"target": "B", "corpus": "NEW", "b": 1.0}),
        ({"target": "HTTP", "url": "http://x"}, {"target": "envs.retrievers.bm25:BM25", "corpus": "NEW"}),
        (
            {"target": "Both", "retrievers": [{"target": "B", "corpus": "old"}, {"target": "D", "corpus": "old"}]},
            {"target": "Both", "retrievers": [{"target": "B", "corpus": "NEW"}, {"target": "D", "corpus": "NEW"}]},
        ),
    ],
)
def test_the_retriever_of_training_searches_the_given_corpus(trained_with: Any, expected: Any, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.touch()
    found = retriever_on(corpus, trained_with, Path("agent.yaml"))
    assert str(found).replace(str(corpus), "NEW") == str(expected)
    if "corpus" in str(trained_with):
        with pytest.raises(ConfigError, match=r"agent.yaml searches a corpus .* --corpus FILE"):
            retriever_on(None, trained_with, Path("agent.yaml"))
    else:
        assert retriever_on(None, trained_with, Path("agent.yaml")) == (trained_with or None)


def step(kind: str, *documents: Document, kept: tuple[str, ...] | None = None) -> Step:
    return Step(kind, True, (), hits=tuple(map(Hit, documents)), kept=kept)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((step("query", ONE, TWO), step("query", TWO, THREE)), [ONE, TWO, THREE]),
        ((step("query", ONE, TWO), step("select", ONE, TWO, kept=("d2",))), [TWO]),
        ((step("query", ONE), step("select", ONE, kept=())), []),
        ((), []),
    ],
)
def test_sources_are_what_was_found_or_kept_each_once(steps: tuple[Step, ...], expected: list[Document]) -> None:
    assert sources(Episode(question(), (), steps=steps)) == expected
