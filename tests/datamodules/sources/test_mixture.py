from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from datamodules.sources.hotpotqa import HotpotQA
from datamodules.sources.mixture import Mixture
from datamodules.sources.musique import MuSiQue
from datamodules.sources.nq import NQ

FIXTURES = Path(__file__).parents[2] / "fixtures"


def numbered(folder: Path, name: str, count: int) -> NQ:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"question": f"q{i}", "answer": ["a"]}) + "\n" for i in range(count)))
    return NQ(path)


def ids(mixture: Mixture) -> list[str]:
    return [question.id for question in mixture]


def test_without_weights_sources_follow_one_another_under_their_names() -> None:
    mixture = Mixture({"h": HotpotQA(FIXTURES / "hotpotqa.json"), "m": MuSiQue(FIXTURES / "musique.jsonl")})
    assert ids(mixture) == ["h/h1", "h/h2", "m/2hop__11_12", "m/3hop1__11_12_13"]


def test_gold_names_the_renamed_passages() -> None:
    mixture = Mixture({"h": HotpotQA(FIXTURES / "hotpotqa.json"), "m": MuSiQue(FIXTURES / "musique.jsonl")})
    corpus = {document.id: document.title for document in mixture.documents()}
    assert len(corpus) == 9
    for question in mixture:
        assert question.gold is not None
        assert [corpus[document] for document in question.gold.documents] == list(question.gold.titles)
        assert {d for step in question.gold.steps for d in step.documents} <= set(question.gold.documents)


def test_the_same_source_twice_does_not_clash() -> None:
    mixture = Mixture({"a": NQ(FIXTURES / "nq.jsonl"), "b": NQ(FIXTURES / "nq.jsonl")})
    assert ids(mixture) == ["a/nq-1", "a/nq-2", "b/nq-1", "b/nq-2"]


def test_weights_interleave_and_every_question_comes_once_in_its_source_order(tmp_path: Path) -> None:
    sources: dict[str, Any] = {"a": numbered(tmp_path, "a", 30), "b": numbered(tmp_path, "b", 10)}
    mixed = ids(Mixture(sources, weights={"a": 1, "b": 1}))
    assert [i for i in mixed if i[0] == "a"] == [f"a/nq-{n}" for n in range(1, 31)]
    assert [i for i in mixed if i[0] == "b"] == [f"b/nq-{n}" for n in range(1, 11)]
    assert {i[0] for i in mixed[:10]} == {"a", "b"}
    assert mixed == ids(Mixture(sources, weights={"a": 1, "b": 1}))
    assert mixed != ids(Mixture(sources, weights={"a": 1, "b": 1}, seed=1))


def test_weights_are_the_proportions_of_a_limit(tmp_path: Path) -> None:
    sources: dict[str, Any] = {"a": numbered(tmp_path, "a", 600), "b": numbered(tmp_path, "b", 600)}
    mixed = ids(Mixture(sources, weights={"a": 3.0, "b": 1.0}, limit=400))
    assert len(mixed) == 400
    assert 270 <= sum(i[0] == "a" for i in mixed) <= 330  # 300 expected, standard deviation 8.7


def test_a_sample_draws_from_the_whole_mixture(tmp_path: Path) -> None:
    sources: dict[str, Any] = {"a": numbered(tmp_path, "a", 40), "b": numbered(tmp_path, "b", 40)}
    sampled = ids(Mixture(sources, sample=20, seed=3))
    assert len(set(sampled)) == 20
    assert {i[0] for i in sampled} == {"a", "b"}
    assert sampled == ids(Mixture(sources, sample=40, seed=3))[:20]


@pytest.mark.parametrize(
    "weights", [{"a": 1.0}, {"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 1.0, "b": 0.0}, {"a": 1.0, "b": float("nan")}]
)
def test_weights_must_fit_the_sources(weights: dict[str, float]) -> None:
    source = NQ(FIXTURES / "nq.jsonl")
    with pytest.raises(ConfigError, match="a positive number for each of a, b"):
        Mixture({"a": source, "b": source}, weights=weights)


def test_no_sources_are_refused() -> None:
    with pytest.raises(ConfigError, match="no sources"):
        Mixture({})
