"""Damaged checkpoints of a killed fit, of which torch itself notices half."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from common.errors import DataError
from pipeline.checkpoint_check import check_checkpoints

WEIGHTS = {"weights": torch.arange(1000.0)}


def test_whole_checkpoints_and_none_at_all_are_fine(tmp_path: Path) -> None:
    check_checkpoints(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    torch.save(WEIGHTS, tmp_path / "checkpoints" / "last.ckpt")
    check_checkpoints(tmp_path)


@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :],
        lambda whole: b"",
        lambda whole: b"\xff" * 100,
        lambda whole: b"{}",
        lambda whole: whole[:10] + b"\0" * (len(whole) - 20) + whole[-10:],
    ],
    ids=["half", "a bit", "empty", "bytes", "json", "a hole"],
)
def test_a_damaged_checkpoint_says_what_to_remove(tmp_path: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "checkpoints" / name
    path.parent.mkdir()
    torch.save(WEIGHTS, path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError) as raised:
        check_checkpoints(tmp_path)
    assert str(raised.value) == f"{path} is damaged: remove {tmp_path} to begin the fit anew"
