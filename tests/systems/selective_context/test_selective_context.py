"""Selective-Context: its percentile, what is shown of passages by word and by sentence."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import ConfigError
from envs.types import Document, Hit
from modules.samplers.in_process import InProcessSampler
from modules.text_surprise import TextSurprise
from systems.selective_context.compressor import SelectiveContext, most_informative, pooled
from tests.tiny import byte_tokenizer, tiny_policy

HITS = [Hit(Document("a", "Ada", "Ada  was born. Did she write? She did.")), Hit(Document("b", "Bab", "He built it."))]


@pytest.mark.parametrize(
    ("information", "ratio", "kept"),
    [
        ([1, 2, 3, 4], 0.5, [2, 3]),
        ([1, 2, 3, 4], 0.35, [2, 3]),
        ([0.5, 1, 4, 2, 3], 0.2, [1, 2, 3, 4]),
        ([1, 2, 3], 0.5, [1, 2]),  # a unit at the threshold stays
        ([], 0.5, []),
    ],
)
def test_units_below_the_percentile_are_left_out(information: list[float], ratio: float, kept: list[int]) -> None:
    assert most_informative(information, ratio) == kept


def test_the_information_of_a_unit_is_the_mean_or_the_sum_of_its_tokens() -> None:
    assert (pooled([3, 1], "mean"), pooled([3, 1], "sum"), pooled([], "mean")) == (2, 4, 0)


def compressor(**settings: Any) -> SelectiveContext:
    return SelectiveContext(TextSurprise(InProcessSampler(tiny_policy(byte_tokenizer(()), scale=3.0))), **settings)


@pytest.mark.parametrize(("units", "most"), [("word", 6), ("sentence", 2)])
@pytest.mark.parametrize("pool", ["mean", "sum"])
def test_half_of_the_units_are_shown_in_their_order(units: str, most: int, pool: str) -> None:
    made = compressor(units=units, pool=pool)
    hits = made.compress("any", HITS)
    assert hits == made.compress("another", HITS), "the question plays no part"
    known = {"word": [*HITS[0].document.text.split(), *HITS[1].document.text.split()]}
    known["sentence"] = ["Ada was born.", "Did she write?", "She did.", "He built it."]
    shown = " ".join(one.shown.removeprefix(f"{one.document.title}: ") for one in hits if one.shown)
    assert sum(shown.count(unit) > 0 for unit in known[units]) >= most
    assert made.counts["cost/read_tokens/scorer"] > 0


def test_everything_and_nothing() -> None:
    everything = compressor(ratio=0.0).compress("", HITS)
    assert [hit.shown for hit in everything] == ["Ada: Ada was born. Did she write? She did.", "Bab: He built it."]
    assert [hit.shown for hit in compressor().compress("", [Hit(Document("c", "C", " "))])] == [""]


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"ratio 2, units word, pool mean: ratio must be in \[0, 1\]"):
        compressor(ratio=2)
