"""The benchmark of updates, at a tiny size: both ways have the same loss, and the memory of both passes is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import update


def test_both_ways_have_one_loss_and_ours_pads_less(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    tiny = ["--episodes", "4", "--turns", "1", "3", "--tokens", "1500", "--memory-tokens", "32", "--vocabulary", "2000"]
    update.main([*tiny, "--repeats", "1", "--threads", "1", "--json", str(out)])
    whole = json.loads(out.read_text())
    ours, padded = whole["rows"]
    assert ours["tokens"] == padded["tokens"]
    assert ours["tokens"] <= ours["padded_tokens"] <= padded["padded_tokens"]
    for name in ("loss", "entropy"):
        assert ours[name] == pytest.approx(padded[name], rel=1e-4)
    assert whole["ratios"]["peak_ratio"] > 0
    assert [row["way"] for row in whole["memory"]] == ["ours", "whole logits"]
