"""The loader's order, its shares and where a resumed epoch goes on, alone and inside a Trainer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from datamodules.batches import Batches


def batches(count: int = 20, epoch: int = 0, **settings: Any) -> Batches[int, list[int]]:
    settings = {"batch_size": 6, "seed": 1} | settings
    return Batches(range(count), list, epoch=lambda: epoch, **settings)


def test_an_epoch_goes_over_all_items_once_and_fills_the_last_batch_with_its_first() -> None:
    loader = batches(20)
    found = list(loader)
    assert (len(loader), [len(batch) for batch in found]) == (4, [6, 6, 6, 6])
    order = [item for batch in found for item in batch]
    assert sorted(order[:20]) == list(range(20))
    assert order[20:] == order[:4]


def test_the_order_is_a_hash_of_seed_and_epoch_and_nothing_else() -> None:
    first = list(batches(epoch=0))
    random.seed(1)
    torch.manual_seed(1)
    assert list(batches(epoch=0)) == first
    assert list(batches(epoch=1)) != first
    assert list(batches(epoch=0, seed=2)) != first
    assert first[:2] == [[8, 2, 0, 15, 12, 14], [11, 9, 17, 10, 13, 18]]  # the same on every machine


def test_without_shuffling_the_order_is_the_given_one() -> None:
    assert list(batches(7, batch_size=3, shuffle=False, lengths=[7, 6, 5, 4, 3, 2, 1])) == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 0, 1],
    ]


def test_batches_of_a_step_are_drawn_together_and_sorted_among_themselves() -> None:
    """Every step of two batches has a random share of the long items, which stand in its second batch."""
    found = list(batches(24, batch_size=3, lengths=range(24), step=2))
    plain = [item for batch in batches(24, batch_size=6) for item in batch]
    steps = [first + second for first, second in zip(found[::2], found[1::2], strict=True)]
    assert steps == [sorted(plain[start : start + 6]) for start in range(0, 24, 6)]


@given(
    count=st.integers(1, 60),
    per_rank=st.integers(1, 4),
    ranks=st.integers(1, 4),
    epoch=st.integers(0, 3),
    long=st.booleans(),
)
def test_ranks_together_see_what_one_sees(count: int, per_rank: int, ranks: int, epoch: int, long: bool) -> None:
    lengths = [item * 7 % 11 for item in range(count)] if long else None
    size = per_rank * ranks
    alone = list(batches(count, epoch, batch_size=size, lengths=lengths))
    shares = [
        list(batches(count, epoch, batch_size=size, lengths=lengths, rank=rank, world_size=ranks))
        for rank in range(ranks)
    ]
    for number, whole in enumerate(alone):
        assert sorted(item for share in shares for item in share[number]) == sorted(whole)
        assert {len(share[number]) for share in shares} == {per_rank}
    assert {item for whole in alone for item in whole} == set(range(count))


def test_items_of_a_batch_are_of_like_length_and_batches_are_mixed() -> None:
    lengths = [item % 10 for item in range(80)]
    found = [[lengths[item] for item in batch] for batch in batches(80, batch_size=8, lengths=lengths)]
    assert all(max(batch) - min(batch) <= 1 for batch in found)
    assert [batch[0] for batch in found] != sorted(batch[0] for batch in found)


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_resumed_epoch_goes_on_where_it_was(stop: int) -> None:
    loader = batches()
    seen = [batch for _, batch in zip(range(stop), loader, strict=False)]
    state = loader.state_dict()
    other = batches()
    other.load_state_dict(state)
    whole = list(batches())
    assert seen + (list(other) if stop < 4 else []) == whole
    assert list(other) == whole  # the next iteration begins anew


def test_a_batch_that_does_not_divide_among_the_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="20 items in batches of 6 for 4 ranks"):
        batches(world_size=4)
    with pytest.raises(ValueError, match="0 items"):
        batches(0)


class Recorder(LightningModule):
    """Remembers the batches it was trained on, with their epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[tuple[int, list[int]]] = []

    def training_step(self, batch: Sequence[int], index: int) -> torch.Tensor:
        self.seen.append((self.current_epoch, list(batch)))
        return self.weight.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trained(folder: Path, steps: int, resume: Path | None = None) -> Recorder:
    """Three epochs of four batches, broken off after `steps`, with a checkpoint after every step."""
    module = Recorder()
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=3,
        max_steps=steps,
        default_root_dir=folder,
        callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)],
    )
    loader = Batches(range(20), list, batch_size=6, seed=1, epoch=lambda: trainer.current_epoch)
    trainer.fit(module, loader, ckpt_path=None if resume is None else str(resume))
    return module


@pytest.mark.parametrize("stop", [2, 4, 7])
def test_a_trainer_broken_off_within_an_epoch_sees_the_rest_of_it(tmp_path: Path, stop: int) -> None:
    whole = trained(tmp_path / "whole", 12).seen
    assert [epoch for epoch, _ in whole] == [0] * 4 + [1] * 4 + [2] * 4
    first = trained(tmp_path / "cut", stop).seen
    rest = trained(tmp_path / "cut", 12, resume=tmp_path / "cut" / f"step={stop}.ckpt").seen
    assert first + rest == whole
