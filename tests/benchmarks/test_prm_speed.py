"""The benchmark of scoring, at a tiny size: every way gives every step the same score."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import prm


def test_one_pass_an_episode_scores_as_one_a_step_and_reads_less(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    tiny = ["--episodes", "2", "--steps", "3", "--prompt", "20", "--repeats", "1", "--threads", "1"]
    prm.main([*tiny, "--json", str(out)])
    ours, alone, batched = json.loads(out.read_text())["rows"]
    assert [ours["way"], alone["way"], batched["way"]] == ["ours", "a step at a time", "steps in batches"]
    assert [row["steps"] for row in (ours, alone, batched)] == [6, 6, 6]
    assert max(alone["gap"], batched["gap"]) < 1e-4
    assert ours["tokens_read"] == 2 * (20 + 3 * 150)
    assert alone["tokens_read"] == batched["tokens_read"] == 2 * (3 * 20 + (1 + 2 + 3) * 150)
    assert alone["seconds_ratio"] > 0
