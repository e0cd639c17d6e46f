from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import ConfigError
from envs.retrievers.hybrid import Hybrid, reciprocal_ranks
from envs.types import Document, Hit
from tests.tiny import FixedRetriever


def ranking(ids: str) -> list[Hit]:
    return [Hit(Document(name, name, name), 9.0) for name in ids]


@pytest.mark.parametrize(
    ("rankings", "constant", "expected"),
    [
        ((), 60, []),
        (("ab", "ba"), 60, [("a", 1 / 61 + 1 / 62), ("b", 1 / 62 + 1 / 61)]),
        (("abc", "cd"), 60, [("c", 1 / 63 + 1 / 61), ("a", 1 / 61), ("b", 1 / 62), ("d", 1 / 62)]),
        (("abc", "c"), 0, [("c", 1 / 3 + 1), ("a", 1.0), ("b", 0.5)]),
        (("", "x"), 60, [("x", 1 / 61)]),
    ],
)
def test_rankings_are_fused_by_reciprocal_ranks(
    rankings: tuple[str, ...], constant: float, expected: list[tuple[str, float]]
) -> None:
    fused = reciprocal_ranks([ranking(ids) for ids in rankings], constant=constant)
    assert [(hit.document.id, hit.score) for hit in fused] == [(name, pytest.approx(score)) for name, score in expected]


def test_all_parts_are_asked_as_deeply_as_is_set_and_their_counts_are_its_own() -> None:
    first = FixedRetriever([hit.document for hit in ranking("abc")])
    other: Any = SimpleNamespace(identity="o", counts={"calls": 2}, search=lambda queries, k: [ranking("cb"[:k])] * 2)
    hybrid = Hybrid({"first": first, "other": other}, depth=2)
    assert [[hit.document.id for hit in hits] for hits in hybrid.search(["q", "r"], 1)] == [["b"], ["b"]]
    assert hybrid.counts == {"calls": 2}
    assert not hasattr(hybrid, "identity")
    assert Hybrid({"a": other, "b": other}).identity != Hybrid({"a": other, "b": other}, constant=1).identity


@pytest.mark.parametrize("settings", [{"parts": {"a": None}}, {"depth": 0}, {"constant": -1.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    part: Any = None
    with pytest.raises(ConfigError, match="at least two parts"):
        Hybrid(**({"parts": {"a": part, "b": part}} | settings))
