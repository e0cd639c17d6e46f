from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from common.errors import ConfigError, DataError
from datamodules.records import episode_from_row, episode_to_row, read_rows, write_rows
from datamodules.refinement import Refinement
from envs.protocols.prorag import ProRAG
from envs.types import Episode
from tests.steps import final, played, query, subanswer
from tests.tiny import byte_tokenizer


class ByWord:
    """Scores a step by the number in its text; 0 without one."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
        self.seen += [episode.question.id for episode in episodes]
        return [
            torch.tensor([float(step.text.partition("=")[2] or "0.5") for step in episode.steps])
            for episode in episodes
        ]


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampled")
    byte_tokenizer().save_pretrained(folder)
    protocol = ProRAG(folder, instruction="")
    error = replace(played(protocol, [query("x=9"), final("Ada")], identity="error"), status="error", error="down")
    episodes = [
        played(protocol, [query("x=2"), subanswer("-=-1"), query("x=1"), subanswer("=3"), final("ada!")], identity="a"),
        played(protocol, [query("x=9"), final("Bob")], identity="wrong"),
        played(protocol, [query("x=9"), "no end"], identity="none"),
        played(protocol, [query("x=-2"), final("Ada") + "<step>"], identity="b"),
        played(protocol, ["bad </subquery> <answer> Ada </answer>", query("x=4"), final("Ada")], identity="c"),
        error,
    ]  # fmt: skip
    write_rows(folder / "data" / "episodes.jsonl", map(episode_to_row, episodes))
    return folder


def refined(sampled: Path, folder: Path, **settings: Any) -> tuple[list[Episode], dict, dict]:
    maker = Refinement(sampled, settings.pop("scorer", ByWord()), **settings)
    maker.make(folder, seed=0, rank=0, world_size=1)
    headline = maker.merge(folder, seed=0, world_size=1)
    kept = [episode_from_row(row) for row in read_rows(folder / "data" / "episodes.jsonl", "episode/1")]
    return kept, json.loads((folder / "data" / "refinement.json").read_text()), headline


def trained(episodes: list[Episode]) -> dict[str, list[bool]]:
    return {episode.question.id: [turn.trainable for turn in episode.turns] for episode in episodes}


def test_right_episodes_are_kept_and_of_them_the_steps_that_score(sampled: Path, tmp_path: Path) -> None:
    kept, report, headline = refined(sampled, tmp_path)
    assert trained(kept) == {"a": [True, False, True, True, True], "c": [False, True, True]}
    assert report["counts"] == {
        "episodes": 6, "episodes_kept": 2, "episodes: wrong answer": 1, "episodes: no answer": 1, "episodes: error": 1,
        "episodes: no step kept": 1, "steps": 10, "steps_kept": 6, "steps: score below": 2, "steps: invalid format": 2,
    }  # fmt: skip
    assert headline["refine/episode_yield"] == pytest.approx(2 / 6)
    assert headline["refine/step_yield"] == pytest.approx(6 / 10)
    [first, _] = kept
    assert sum(sum(sequence.loss_mask) for sequence in first.sequences()) == sum(
        len(turn.action_ids) for number, turn in enumerate(first.turns) if number != 1
    )


def test_a_score_has_to_be_above_the_threshold(sampled: Path, tmp_path: Path) -> None:
    kept, *_ = refined(sampled, tmp_path, threshold=2.0)
    assert trained(kept) == {"a": [False, False, False, True, False], "c": [False, True, False]}


def test_a_quantile_leaves_out_the_lowest_share_of_each_kind_of_step_in_question(sampled: Path, tmp_path: Path) -> None:
    # In question are queries of -2, 1, 2, 4, sub-answers of -1, 3, and answers of .5, .5: a score has to be above.
    kept, report, _ = refined(sampled, tmp_path, quantile=0.5)
    assert report["counts"]["steps_kept"] == 3
    assert report["thresholds"] == {"answer": 0.5, "query": 1.0, "subanswer": -1.0}
    assert trained(kept)["a"] == [True, False, False, True, False]
    nothing_left_out = refined(sampled, tmp_path / "zero", quantile=0.0)
    assert nothing_left_out[1]["counts"]["steps_kept"] == 8


def test_all_steps_of_an_episode_can_be_required(sampled: Path, tmp_path: Path) -> None:
    kept, report, _ = refined(sampled, tmp_path, threshold=-1.5, require_all_steps=True)
    assert trained(kept) == {"a": [True] * 5}
    assert report["counts"]["steps: another step failed"] == 2


def test_without_a_scorer_the_answer_and_the_format_alone_decide(sampled: Path, tmp_path: Path) -> None:
    kept, *_ = refined(sampled, tmp_path, scorer=None)
    assert trained(kept) == {"a": [True] * 5, "b": [True, False], "c": [False, True, True]}
    every, report, _ = refined(sampled, tmp_path / "any", scorer=None, answer="any")
    assert {"wrong", "none"} < trained(every).keys()
    assert report["counts"]["episodes: error"] == 1


def test_only_right_episodes_are_scored_once_and_ranks_share_the_units(sampled: Path, tmp_path: Path) -> None:
    scorer = ByWord()
    makers = [Refinement(sampled, scorer, unit=2) for _ in range(2)]
    for rank in (1, 0, 1):
        makers[rank].make(tmp_path / "two", seed=0, rank=rank, world_size=2)
    makers[0].merge(tmp_path / "two", seed=0, world_size=2)
    assert sorted(scorer.seen) == ["a", "b", "c"]
    refined(sampled, tmp_path / "one")
    for name in ("episodes.jsonl", "refinement.json"):
        assert (tmp_path / "two/data" / name).read_bytes() == (tmp_path / "one/data" / name).read_bytes()


class Truth:
    def judge(self, episode: Episode) -> Any:
        return SimpleNamespace(valid=tuple(step.kind == "query" for step in episode.steps))


def test_where_the_truth_is_known_precision_and_recall_of_the_kept_steps_are_told(
    sampled: Path, tmp_path: Path
) -> None:
    _, report, headline = refined(sampled, tmp_path, oracle=Truth())
    # Kept: three queries (2, 1, 4) of six steps; true are four queries of ten steps (-2 was left out).
    assert report["precision"] == pytest.approx(3 / 6)
    assert report["precision_before"] == pytest.approx(4 / 10)
    assert headline["refine/recall"] == pytest.approx(3 / 4)


def test_nothing_kept_is_one_line_that_says_why(sampled: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"keeps nothing of 6 episodes \(.*1 episodes: wrong answer.*threshold 100\)"):
        refined(sampled, tmp_path, threshold=100.0)
    with pytest.raises(DataError, match=r"quantile 0\.9\): lower `quantile`"):
        refined(sampled, tmp_path / "quantile", quantile=0.9, require_all_steps=True)


def test_wrong_settings_are_refused(sampled: Path) -> None:
    with pytest.raises(ConfigError, match=r"quantile in \[0, 1\)"):
        Refinement(sampled, ByWord(), quantile=1.0)
    with pytest.raises(ConfigError, match="quantile needs a scorer"):
        Refinement(sampled, None, quantile=0.5)
