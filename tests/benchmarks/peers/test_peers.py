"""The comparison with peers: every side samples the same episodes greedily and learns; its figures add up."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.equal_turns import WORLD_BASE, Work
from benchmarks.peers import __main__ as peers
from benchmarks.peers.suite_side import cache_bytes
from common.errors import UserError
from modules.policy import load_policy

TINY = [
    "--questions", "2", "--group", "2", "--turns", "2", "--turn-tokens", "12", "--observation", "8", "--prompt", "16",
    "--micro-batch", "2", "--repeats", "1", "--rounds", "1", "--threads", "1",
]  # fmt: skip


def figures(seconds: float, *ids: list[int]) -> dict[str, Any]:
    row = {"tokens": 100, "rollout_s": seconds / 2, "update_s": seconds / 2, "seconds": seconds, "cpu_s": seconds}
    return {"iterations": [row], "ids": {"q0/0": list(ids)}, "moved": 1e-6}


def test_a_ratio_above_1_says_that_ours_is_faster() -> None:
    ours = [figures(1, [1], [2]), figures(3, [1], [2])]
    suite, trl = peers.rows_of({"suite": ours, "TRL": [figures(5, [1], [3]), figures(7, [1], [3])]})
    assert (suite["seconds"], suite["tokens_per_s"], suite["agreement"], suite["ratio"]) == (2, 100, 1, 1)
    assert (trl["seconds"], trl["ratio"], trl["sampling_ratio"], trl["agreement"]) == (6, 3, 3, 0.5)


def test_a_server_has_room_for_all_episodes() -> None:
    policy = load_policy(str(WORLD_BASE), device="cpu")
    work = Work(questions=1, group=2, turns=1, turn_tokens=3, observation=4, prompt=8)
    assert cache_bytes(policy, work) == 2 * (16 + 32) * 4 * (2 * 4 * 2 * 32), "both, of 4 layers with 2 heads of 32"


def test_a_peer_that_is_not_installed_is_left_out(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(peers, "installed", lambda: {})
    monkeypatch.setattr(peers, "run", lambda side, settings: figures(1, [1]))
    peers.main([*TINY, "--json", str(tmp_path / "out.json")])
    assert [row["side"] for row in json.loads((tmp_path / "out.json").read_text())["rows"]] == ["suite"]
    said = capsys.readouterr().err
    assert "make engine" in said
    assert "make peers" in said


def test_a_side_that_ends_says_why() -> None:
    settings = {"threads": 1, "model": "/nowhere", "dtype": "float32", "device": "cpu", "work": asdict(Work())}
    with pytest.raises(UserError, match=r"suite ended with 1: .*/nowhere.*; leave it out of --sides"):
        peers.run("suite", settings)


@pytest.mark.slow
@pytest.mark.peers
def test_trl_samples_the_same_episodes_and_both_sides_learn(tmp_path: Path) -> None:
    peers.main([*TINY, "--sides", "suite", "TRL", "--json", str(tmp_path / "out.json")])
    written = json.loads((tmp_path / "out.json").read_text())
    suite, trl = written["rows"]
    assert [suite["side"], trl["side"]] == ["suite", "TRL"]
    assert trl["agreement"] == 1
    assert written["context"] == 16 + 2 * (12 + 8) + 1
    for row in (suite, trl):
        assert 0.3e-6 < row["moved"] < 3e-6  # AdamW moves a weight by about its learning rate, 1e-6
        assert row["tokens"] > 8
        assert row["rollout_s"] + row["update_s"] == pytest.approx(row["seconds"])
    assert trl["ratio"] == pytest.approx(trl["seconds"] / suite["seconds"], abs=0.006)
