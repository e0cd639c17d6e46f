"""Batches in an order given by a hash, shared out over ranks, with a position that a checkpoint stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from lightning.pytorch import Trainer

from common.errors import ConfigError
from common.seeds import stable_hash
from envs.packing import by_length

Item = TypeVar("Item")
Batch = TypeVar("Batch")
_WINDOW = 16  # batches sorted by length together: little padding, yet a mixed order


def accumulate(trainer: Trainer | None, batch_size: int, micro_batch: int) -> int:
    """Have a trainer take an optimiser step every `batch_size` items; returns the items of a forward pass.

    A datamodule calls it on setting up, before the module counts its optimiser steps.

    Raises:
        ConfigError: see `items_of_a_pass`.
    """
    assert trainer is not None
    micro_batch = items_of_a_pass(batch_size, micro_batch, trainer.world_size)
    trainer.accumulate_grad_batches = batch_size // micro_batch
    return micro_batch


def items_of_a_pass(batch_size: int, micro_batch: int | None, ranks: int) -> int:
    """Items of one forward pass, of all ranks together: `micro_batch`, but at least one on each; None is all.

    Raises:
        ConfigError: a step is not a whole number of micro-batches, or these do not divide among the ranks.
    """
    size = max(batch_size if micro_batch is None else micro_batch, ranks)
    if (micro_batch or 1) < 1 or batch_size % size or size % ranks:
        sizes = f"batch_size {batch_size}" + (f", micro_batch {micro_batch}" if micro_batch is not None else "")
        raise ConfigError(
            f"{sizes}: the batch must be a multiple of the micro-batch, and that must divide among {ranks} ranks"
        )
    return size


def check_micro(micro_batch: int | None, micro_tokens: int | None) -> None:
    """Refuse both sizes of a forward pass together.

    Raises:
        ConfigError: both are given, or the tokens are too few.
    """
    if micro_tokens is not None and (micro_batch is not None or micro_tokens < 1):
        raise ConfigError(
            f"micro_batch {micro_batch}, micro_tokens {micro_tokens}: give one of them, and micro_tokens at least 1"
        )


def passes_needed(lengths: Sequence[int], *, batch_size: int, tokens: int, ranks: int = 1) -> int:
    """Number of forward passes of at most `tokens` padded tokens that a rank needs for any step of `batch_size` items.

    It is the number for a step of the longest items, since a shorter item never needs more room.
    """
    longest = sorted(lengths, reverse=True)[:batch_size]
    return sum(1 for _ in by_length(longest[::ranks], length=int, tokens=tokens))


class Batches(Generic[Item, Batch]):
    """A loader for the Trainer: it has a length, reads in-process, and rewinds when it is iterated again.

    Every epoch goes over all items once, in an order given by hash(seed, epoch); the last batch is filled up with the
    epoch's first items. A batch of `batch_size` items is shared out over the ranks, so two ranks together see the
    batches of one. The state is the position within the epoch, so a resumed epoch continues at its next batch.

    Args:
        collate: makes a batch of a rank's items.
        batch_size: items of a batch over all ranks; without `tokens` a multiple of the number of ranks.
        epoch: returns the number of the epoch that begins.
        lengths: of the items; with them a batch has items of similar length.
        step: batches of an optimiser step, if every step is to have its share of long and of short items: they are
            drawn together and sorted among themselves alone. None sorts many batches together, and then mixes them.
        shuffle: False keeps the order of `items`.
        tokens: cut every batch into forward passes of at most so many padded tokens on each rank (or of one item), of
            similar length each. All batches have the same number of passes, `passes`; some may have no items. The last
            batch is then not filled up. Needs `lengths`.
    """

    def __init__(
        self,
        items: Sequence[Item],
        collate: Callable[[Sequence[Item]], Batch],
        *,
        batch_size: int,
        seed: int,
        epoch: Callable[[], int],
        rank: int = 0,
        world_size: int = 1,
        lengths: Sequence[int] | None = None,
        shuffle: bool = True,
        step: int | None = None,
        tokens: int | None = None,
    ) -> None:
        if not items or (tokens is None and batch_size % world_size):
            raise ValueError(f"{len(items)} items in batches of {batch_size} for {world_size} ranks")
        self.items, self.collate, self.batch_size, self.seed, self.epoch = items, collate, batch_size, seed, epoch
        self.rank, self.world_size, self.lengths, self.shuffle = rank, world_size, lengths, shuffle
        self.step, self.tokens, self.passes = step, tokens, 1
        if tokens is not None:
            self.passes = passes_needed(lengths or (), batch_size=batch_size, tokens=tokens, ranks=world_size)
        self._position = self._resumed = 0

    @classmethod
    def of(
        cls,
        trainer: Trainer | None,
        items: Sequence[Item],
        collate: Callable[[Sequence[Item]], Batch],
        *,
        batch_size: int,
        seed: int,
        lengths: Sequence[int] | None = None,
        shuffle: bool = True,
        step: int | None = None,
        tokens: int | None = None,
    ) -> Batches[Item, Batch]:
        """The batches of this rank of a trainer.

        Raises:
            ConfigError: a batch does not divide among the ranks.
        """
        assert trainer is not None
        if tokens is None:
            items_of_a_pass(batch_size, None, trainer.world_size)
        return cls(
            items,
            collate,
            batch_size=batch_size,
            seed=seed,
            epoch=lambda: trainer.current_epoch,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            lengths=lengths,
            shuffle=shuffle,
            step=step,
            tokens=tokens,
        )

    def __len__(self) -> int:
        return -(-len(self.items) // self.batch_size) * self.passes

    def __iter__(self) -> Iterator[Batch]:
        self._position, self._resumed = self._resumed, 0
        shares = self._shares if self.tokens is None else self._shares_within_budget
        for batch in shares(self.epoch())[self._position :]:
            self._position += 1
            yield self.collate([self.items[i] for i in batch])

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position % len(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._resumed = state["position"]

    def _order(self, epoch: int) -> list[int]:
        """The items of an epoch, all once."""
        order = list(range(len(self.items)))
        if self.shuffle:
            order.sort(key=lambda index: stable_hash(self.seed, "order", epoch, index))
        return order

    def _shares(self, epoch: int) -> list[list[int]]:
        """This rank's indices of every batch of an epoch."""
        order = self._order(epoch)
        order += [order[i % len(order)] for i in range(len(self) * self.batch_size - len(order))]
        if self.lengths is not None and self.shuffle:
            window = (self.step or _WINDOW) * self.batch_size
            for start in range(0, len(order), window):
                order[start : start + window] = sorted(order[start : start + window], key=self.lengths.__getitem__)
        batches = [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        if self.lengths is not None and self.shuffle and self.step is None:
            places = sorted(range(len(batches)), key=lambda place: stable_hash(self.seed, "batches", epoch, place))
            batches = [batches[place] for place in places]
        return [batch[self.rank :: self.world_size] for batch in batches]

    def _shares_within_budget(self, epoch: int) -> list[list[int]]:
        """This rank's indices of every forward pass of an epoch, none where its batch needs fewer passes."""
        assert self.lengths is not None
        assert self.tokens is not None
        order, length = self._order(epoch), self.lengths.__getitem__
        shares: list[list[int]] = []
        for start in range(0, len(order), self.batch_size):
            batch = sorted(order[start : start + self.batch_size], key=length, reverse=True)
            parts = list(by_length(batch[self.rank :: self.world_size], length=length, tokens=self.tokens))
            shares += parts + [[] for _ in range(self.passes - len(parts))]
        return shares
