from __future__ import annotations

import json
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
from evaluation.step_ranking import StepRanking
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
    headline = maker.merge(tmp_path, seed=0, world_size=1)
    groups = {g["group"]: g for g in json.loads((tmp_path / "data/step_ranking.json").read_text())["groups"]}
    assert list(groups) == ["all", "answer", "query", "subanswer"]
    assert groups["query"]["scorers"]["prm"]["auc"] == 1
    assert groups["query"]["scorers"]["contrary"]["auc"] == 0
    assert groups["query"]["valid"] == pytest.approx(8 / 12)
    assert groups["answer"]["scorers"]["prm"]["auc"] is None, "every answer was true"
    assert groups["query"]["scorers"]["logp_mean"]["auc"] == 0.5, "all tokens were written with one log-probability"
    assert groups["query"]["scorers"]["prm"]["auc_gain"] == 0.5
    assert groups["query"]["scorers"]["prm"]["accuracy_at_0"] == 1
    assert groups["all"]["n"] == 12 * 2 * 3
    assert headline["prm/auc"] == groups["all"]["scorers"]["prm"]["auc"] < 1, "an answer without score ranks last"
    assert headline["prm/auc_logprob"] == groups["all"]["scorers"]["logp_mean"]["auc"]
    assert {"prm/accuracy_at_0", "prm/contrary/auc"} <= headline.keys()
    report = (tmp_path / "report.md").read_text()
    assert "| query (n 24, 67 % true) |" in report
    assert "| prm |" in report


def test_where_all_steps_are_true_there_is_nothing_to_rank_and_it_says_so(protocol: ProRAG, tmp_path: Path) -> None:
    class Trusting:
        def judge(self, episode: Episode) -> Any:
            return SimpleNamespace(valid=(True,) * len(episode.steps))

    maker = ranking(protocol, oracle=Trusting())
    maker.make(tmp_path, seed=0, rank=0, world_size=1)
    headline = maker.merge(tmp_path, seed=0, world_size=1)
    assert headline["prm/valid_share"] == 1
    assert "prm/auc" not in headline
    page = (tmp_path / "report.md").read_text()
    assert "AUC less that of the mean log-probability –; a score above 0" in page
    assert "| prm | – |" in page


def test_how_it_is_cut_and_shared_out_does_not_matter_and_done_units_stay(protocol: ProRAG, tmp_path: Path) -> None:
    whole, shared = ranking(protocol, unit=100), ranking(protocol)
    whole.make(tmp_path / "whole", seed=0, rank=0, world_size=1)
    for rank in (1, 0):
        shared.make(tmp_path / "shared", seed=0, rank=rank, world_size=2)
    [unit] = (tmp_path / "shared").glob("data/units/00001.jsonl")
    before = unit.stat().st_mtime_ns
    shared.make(tmp_path / "shared", seed=0, rank=1, world_size=2)
    assert unit.stat().st_mtime_ns == before
    assert whole.merge(tmp_path / "whole", seed=0, world_size=1) == shared.merge(
        tmp_path / "shared", seed=0, world_size=2
    )
    for name in ("data/steps.jsonl", "data/step_ranking.json", "report.md"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "shared" / name).read_bytes()


def test_stored_log_probabilities_are_the_baseline(protocol: ProRAG, tmp_path: Path) -> None:
    maker = ranking(protocol)
    maker.make(tmp_path, seed=0, rank=0, world_size=1)
    row = next(read_rows(tmp_path / "data/units/00000.jsonl", None))
    tokens = len(protocol.codec.control(says_first()))
    assert row["scores"]["logp_mean"] == pytest.approx(-0.5)
    assert row["scores"]["logp_sum"] == pytest.approx(-0.5 * tokens)
    assert row["scores"]["shorter"] == -tokens


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
    with pytest.raises(ConfigError, match="logp_mean is the name of a baseline"):
        ranking(protocol, scorers={"logp_mean": Scorer(1)})
    with pytest.raises(DataError, match="no step was sampled"):
        ranking(protocol, questions=[]).merge(tmp_path, seed=0, world_size=1)
