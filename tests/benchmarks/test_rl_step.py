"""A whole iteration of both sides: each learns from the same rewards, and its parts add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import rl_step
from benchmarks.made_up_episodes import WORLD_BASE, load_model, made_up_episodes
from benchmarks.measures import Stopwatch
from benchmarks.scored import Scored
from envs.text import load_tokenizer
from modules.policy import Policy

TINY = [
    "--questions",
    "2",
    "--group",
    "2",
    "--turns",
    "2",
    "--turn-tokens",
    "4",
    "--observation",
    "8",
    "--prompt",
    "16",
    "--repeats",
    "1",
    "--threads",
    "1",
]
SETTINGS = {"reward_model": True, "model": str(WORLD_BASE), "dtype": "float32", "device": "cpu"}


def test_the_shared_reward_is_variety_plus_the_mean_score_of_steps() -> None:
    policy = Policy(load_model(str(WORLD_BASE), "float32", "cpu"), load_tokenizer(WORLD_BASE))
    episodes = made_up_episodes(3, 800, turns=(2, 3))
    scored = Scored(policy, SETTINGS)
    plain_B = Scored(policy, SETTINGS | {"reward_model": False}).outcomes(episodes)
    assert scored._scorer is not None
    means = [float(scores_S.sigmoid().mean()) for scores_S in scored._scorer.score(episodes)]
    assert scored.outcomes(episodes).tolist() == pytest.approx((plain_B + torch.tensor(means)).tolist(), abs=1e-5)
    assert len(set(means)) == 3

    assert scored.figures(Stopwatch(), episodes)["moved"] == 0
    policy.model.get_input_embeddings().weight.data += 0.5  # pyright: ignore
    figures = scored.figures(Stopwatch(), episodes)
    assert figures["moved"] == pytest.approx(0.5)
    assert figures["tokens"] == sum(len(turn.action_ids) for episode in episodes for turn in episode.turns)
    assert figures["rollout_s"] + figures["scoring_s"] + figures["update_s"] == pytest.approx(figures["seconds"])


@pytest.mark.slow
@pytest.mark.peers
def test_both_sides_learn(tmp_path: Path) -> None:
    rl_step.main([*TINY, "--micro-batch", "2", "--json", str(tmp_path / "out.json")])
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["way"] for row in rows] == ["suite", "trl"]
    for row in rows:
        assert 0.3e-6 < row["moved"] < 3e-6  # AdamW moves a weight by about its learning rate, 1e-6
        assert 0 < row["reward"] < 2
        assert row["tokens"] > 8
    assert rows[1]["ratio"] == pytest.approx(rows[1]["seconds"] / rows[0]["seconds"], abs=0.006)
