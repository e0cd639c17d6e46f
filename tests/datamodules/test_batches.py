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
from lightning.pytorch.callbacks import ModelCheckpoint

from datamodules.batches import Batches
from modules.optimizer import AdamW
from modules.training import BaseTraining
from tests.toy_training import quiet_trainer


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


class Recorder(BaseTraining):
    """Remembers the batches it was trained on, with their epochs; the learning rate decays over the steps."""

    def __init__(self) -> None:
        super().__init__(AdamW(0.1))
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[tuple[int, list[int]]] = []

    def training_step(self, batch: Sequence[int], index: int) -> torch.Tensor:
        self.seen.append((self.current_epoch, list(batch)))
        return self.mean_loss(self.weight.sum(), torch.tensor(1.0))


def trained(folder: Path, steps: int, resume: Path | None = None) -> list[tuple[int, list[int]]]:
    """Three epochs of four batches, broken off after `steps`, with a checkpoint after every step."""
    module = Recorder()
    checkpoints = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = quiet_trainer(max_epochs=3, max_steps=steps, enable_checkpointing=True, callbacks=[checkpoints])
    loader = Batches(range(20), list, batch_size=6, seed=1, epoch=lambda: trainer.current_epoch)
    trainer.fit(module, loader, ckpt_path=None if resume is None else str(resume))
    return module.seen


@pytest.mark.parametrize("stop", [2, 4, 7])
def test_a_trainer_broken_off_within_an_epoch_sees_the_rest_of_it(tmp_path: Path, stop: int) -> None:
    whole = trained(tmp_path / "whole", 12)
    assert [epoch for epoch, _ in whole] == [0] * 4 + [1] * 4 + [2] * 4
    first = trained(tmp_path / "cut", stop)
    rest = trained(tmp_path / "cut", 12, resume=tmp_path / "cut" / f"step={stop}.ckpt")
    assert first + rest == whole


LENGTHS = [3, 9, 4, 4, 10, 2, 5, 5, 30, 1, 6, 2, 7]


def budgeted(rank: int = 0, world_size: int = 1, **settings: Any) -> Batches[int, list[int]]:
    share = {"rank": rank, "world_size": world_size}
    return batches(len(LENGTHS), batch_size=4, lengths=LENGTHS, tokens=12, **share, **settings)


def test_a_literal_budget_of_tokens() -> None:
    """Steps of the plain order are cut, longest first; one item may exceed the budget alone."""
    plain = list(batches(len(LENGTHS), batch_size=4))
    assert plain[0] == [8, 2, 0, 12]  # of 30, 4, 3 and 7 tokens
    loader = budgeted()
    assert loader.passes == 4  # the longest four, of 30, 10, 9 and 7 tokens, share no pass of 12
    assert list(loader)[:4] == [[8], [12], [2, 0], []]
    assert len(list(loader)) == len(loader) == 4 * 4


@pytest.mark.parametrize("world_size", [1, 2])
def test_every_step_has_the_items_that_it_has_without_a_budget(world_size: int) -> None:
    *plain, filled_up = batches(len(LENGTHS), batch_size=4)
    plain.append(filled_up[:1])
    loaders = [budgeted(rank, world_size) for rank in range(world_size)]
    found = [list(loader) for loader in loaders]
    passes = loaders[0].passes
    assert len({len(of_rank) for of_rank in found}) == 1, "every rank takes as many passes"
    for step, expected in enumerate(plain):
        parts = [part for of_rank in found for part in of_rank[step * passes : (step + 1) * passes]]
        assert sorted(item for part in parts for item in part) == sorted(expected)
        for part in parts:
            assert len(part) <= 1 or len(part) * max(LENGTHS[item] for item in part) <= 12


def test_a_budget_needs_no_batch_that_divides_among_the_ranks() -> None:
    """Four items a step for six ranks: two of them have nothing to do, and take as many passes."""
    found = [list(budgeted(rank, 6)) for rank in range(6)]
    assert [len(of_rank) for of_rank in found] == [4] * 6
    assert [sorted(item for of_rank in found for item in of_rank[step]) for step in range(4)] == [
        sorted(step) for step in [*list(batches(len(LENGTHS), batch_size=4))[:3], [list(budgeted())[12][0]]]
    ]


def test_a_resumed_epoch_of_a_budget_goes_on_at_its_next_pass() -> None:
    whole = list(budgeted())
    first, second = budgeted(), budgeted()
    served = iter(first)
    assert [next(served) for _ in range(5)] == whole[:5]
    second.load_state_dict(first.state_dict())
    assert list(second) == whole[5:]
    assert list(second) == whole, "and the next epoch begins at its first"


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=40), tokens=st.integers(1, 60), seed=st.integers(0, 3))
def test_no_step_needs_more_passes_than_its_longest_items_could(lengths: list[int], tokens: int, seed: int) -> None:
    settings: dict[str, Any] = {"lengths": lengths, "tokens": tokens, "seed": seed, "batch_size": 6}
    for rank in range(2):
        loader = batches(len(lengths), rank=rank, world_size=2, **settings)
        assert len(list(loader)) == len(loader)
