"""Both sides of the comparison of fine-tuning train the same tokens of the same episodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.update import main, padded
from common.errors import ConfigError
from datamodules.records import episode_to_row, write_rows
from envs.packing import pack
from tests.datamodules.test_episode_data import episodes
from tests.tiny import byte_tokenizer, tiny_policy


def test_what_is_padded_is_neither_read_nor_trained() -> None:
    long, short = (pack(one) for episode in episodes(2) for one in episode.sequences())
    batch = padded([{"ids": one.ids_T, "mask": one.loss_mask_T} for one in (long, short)])
    assert batch["attention_mask"].sum(1).tolist() == [len(long), len(short)]
    assert (batch["labels"] != -100).sum(1).tolist() == [int(long.loss_mask_T.sum()), int(short.loss_mask_T.sum())]
    assert batch["input_ids"][1, : len(short)].tolist() == short.ids_T.tolist()


def test_both_sides_have_the_gradient_of_the_same_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_policy(byte_tokenizer()).save(tmp_path / "model")
    write_rows(tmp_path / "episodes.jsonl", map(episode_to_row, episodes(6)))
    written = tmp_path / "figures.json"
    given = ["--episodes", str(tmp_path / "episodes.jsonl"), "--model", str(tmp_path / "model"), "--json", str(written)]
    given += ["--precision", "32-true"]  # bfloat16 rounds differently where episodes share a pass
    main([*given, "--count", "4", "--batch", "2", "--micro-tokens", "900", "--micro-batch", "1", "2", "--repeats", "1"])
    figures = json.loads(written.read_text())
    suite, *peers = figures["rows"]
    assert [row["side"] for row in peers] == ["Trainer, 1 a pass", "Trainer, 2 a pass"]
    assert figures["episodes"] == 4
    for row in peers:
        assert row["gradient"] == pytest.approx(suite["gradient"], rel=1e-3)
        assert row["tokens_per_s"] == pytest.approx(figures["tokens"] / row["seconds"])
        assert row["ratio"] == pytest.approx(row["seconds"] / suite["seconds"])
    assert "| suite |" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="give --episodes"):
        main(["--episodes", str(tmp_path / "missing.jsonl")])
