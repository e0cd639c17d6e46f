from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from common.errors import ConfigError, DataError, RetrievalError
from datamodules.records import read_rows
from envs.interfaces import Retriever
from envs.protocols.prorag import ProRAG
from envs.retrieval import RetrievalEnvironment
from envs.types import Episode, Limits
from evaluation.steps.step_ranking import StepRanking
from tests.making import check_shares_and_resumes, run
from tests.steps import PASSAGES, final, query, subanswer
from tests.tiny import FixedRetriever, Scripted, byte_tokenizer, question


class Truth:
    """A step is true unless it speaks of bad things."""

    def judge(self, episode: Episode) -> Any:
        return SimpleNamespace(valid=tuple("bad" not in step.text for step in episode.steps))


class Scorer:
    """Knows the truth, turned round by `sign`, and cannot score answers."""

    def __init__(self, sign: int) -> None:
        self.sign = sign

    def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
        return [
            torch.tensor([
                float("nan") if step.kind == "answer" else self.sign * (1.0 if "bad" not in step.text else -1.0)
                for step in episode.steps
            ])
            for episode in episodes
        ]  # fmt: skip


@pytest.fixture(scope="module")
def protocol(tmp_path_factory: pytest.TempPathFactory) -> ProRAG:
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_tokenizer().save_pretrained(folder)
    return ProRAG(folder, instruction="")


def says(episode: Episode) -> str:
    number = int(episode.question.id[1:])
    script = [query("bad one" if number % 3 == 0 else "one"), subanswer("bad" if number % 2 else "Ada"), final("Ada")]
    return script[len(episode.turns)]


def ranking(protocol: ProRAG, retriever: Retriever | None = None, **settings: Any) -> StepRanking:
    return StepRanking(
        **{
            "questions": [question(identity=f"q{number}") for number in range(12)],
            "environment": RetrievalEnvironment(
                protocol, retriever or FixedRetriever(PASSAGES), limits=Limits(turns=3)
            ),
            "sampler": Scripted(protocol.codec.control, says),
            "oracle": Truth(),
            "scorers": {"prm": Scorer(1), "contrary": Scorer(-1)},
            "samples": 2,
            "unit": 5,
        }
        | settings
    )


def test_a_scorer_that_knows_the_truth_has_auc_one_and_its_opposite_none(protocol: ProRAG, tmp_path: Path) -> None:
    maker = ranking(protocol)
    maker.make(tmp_path, seed=0, rank=0, world_size=1)
    metrics = maker.merge(tmp_path, seed=0, world_size=1)
    found = json.loads((tmp_path / "data/step_ranking.json").read_text())
    groups = {group["group"]: group for group in found["groups"]}
    assert list(groups) == ["macro", "answer", "query", "subanswer", "pooled"]
    assert groups["query"]["true"] == pytest.approx(8 / 12)
    assert groups["query"]["scorers"]["logp_mean"]["auc"] == 0.5, "all tokens were written with one log-probability"
    assert groups["pooled"]["n"] == 12 * 2 * 3
    assert groups["answer"]["scorers"]["prm"]["auc"] is None, "every answer was true"
    assert (metrics["prm/auc/macro"], metrics["prm/auc/query"], metrics["prm/contrary/auc/query"]) == (1, 1, 0)
    assert metrics["prm/auc/pooled"] < 1, "an answer without score ranks last"
    # scores of +1 and -1 say .731 and .269, of steps that are true and untrue without exception
    assert metrics["prm/ece/query"] == pytest.approx(0.269, abs=1e-3)
    assert [group["group"] for group in found["calibration"]["contrary"]] == ["query", "subanswer", "pooled"]
    assert (
        (tmp_path / "report.md")
        .read_text()
        .startswith("# Ranking of true and untrue steps\n\nWithin kinds of step `prm` ranks")
    )


def test_where_all_steps_are_true_there_is_nothing_to_rank_and_it_says_so(protocol: ProRAG, tmp_path: Path) -> None:
    class Trusting:
        def judge(self, episode: Episode) -> Any:
            return SimpleNamespace(valid=(True,) * len(episode.steps))

    maker = ranking(protocol, oracle=Trusting())
    maker.make(tmp_path, seed=0, rank=0, world_size=1)
    metrics = maker.merge(tmp_path, seed=0, world_size=1)
    assert metrics["prm/true_share"] == 1
    assert not [name for name in metrics if "auc" in name]
    assert re.search(r"^\| prm +\| +– \| +– \| +– \|$", (tmp_path / "report.md").read_text(), re.MULTILINE)


def test_steps_that_cannot_be_judged_are_left_out(protocol: ProRAG, tmp_path: Path) -> None:
    class Partial:
        def judge(self, episode: Episode) -> Any:
            return SimpleNamespace(
                valid=tuple(None if s.kind == "answer" else "bad" not in s.text for s in episode.steps)
            )

    maker = ranking(protocol, oracle=Partial())
    maker.make(tmp_path, seed=0, rank=0, world_size=1)
    maker.merge(tmp_path, seed=0, world_size=1)
    rows = [json.loads(line) for line in (tmp_path / "data/steps.jsonl").read_text().splitlines()]
    assert {row["kind"] for row in rows} == {"query", "subanswer"}
    assert {row["valid"] for row in rows} == {True, False}


def test_how_it_is_cut_and_shared_out_does_not_matter_and_done_units_stay(protocol: ProRAG, tmp_path: Path) -> None:
    run(ranking(protocol, unit=100), tmp_path / "whole")
    check_shares_and_resumes(ranking(protocol), tmp_path)
    for name in ("data/steps.jsonl", "data/step_ranking.json", "report.md"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_stored_log_probabilities_length_and_position_are_baselines(protocol: ProRAG, tmp_path: Path) -> None:
    maker = ranking(protocol)
    maker.make(tmp_path, seed=0, rank=0, world_size=1)
    row, second, *_ = read_rows(tmp_path / "data/units/00000.jsonl", None)
    tokens = len(protocol.codec.control(says_first()))
    assert row["scores"]["logp_mean"] == pytest.approx(-0.5)
    assert row["scores"]["logp_sum"] == pytest.approx(-0.5 * tokens)
    assert row["scores"]["shorter"] == -tokens
    assert (row["scores"]["position"], second["scores"]["position"]) == (0, -1), "earlier steps score higher"


def says_first() -> str:
    return query("bad one")


class Broken:
    def search(self, queries: Sequence[str], k: int) -> Any:
        raise RetrievalError("down")


def test_a_failed_retriever_leaves_no_unit(protocol: ProRAG, tmp_path: Path) -> None:
    with pytest.raises(RetrievalError):
        ranking(protocol, retriever=Broken()).make(tmp_path, seed=0, rank=0, world_size=1)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_wrong_settings_and_no_steps_are_one_clear_line(protocol: ProRAG, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="each must be at least 1"):
        ranking(protocol, samples=0)
    for name in ("logp_mean", "kind", "all_baselines"):
        with pytest.raises(ConfigError, match=f"{name} is the name of a baseline"):
            ranking(protocol, scorers={name: Scorer(1)})
    with pytest.raises(DataError, match="no sampled step could be judged"):
        ranking(protocol, questions=[]).merge(tmp_path, seed=0, world_size=1)
