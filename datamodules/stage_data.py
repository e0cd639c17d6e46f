"""Records of stages as training data: read once, held out question by question, served in batches."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from lightning.pytorch import LightningDataModule

from common.errors import ConfigError, DataError
from common.seeds import stable_hash
from datamodules.batches import Batches, accumulate, items_of_a_pass
from datamodules.records import numbered_rows
from envs.token_ids import require_readable
from envs.types import Episode

log = logging.getLogger(__name__)

Record = TypeVar("Record")
Item = TypeVar("Item")
Batch = TypeVar("Batch")


class StageData(LightningDataModule, Generic[Item, Batch]):
    """The items of one or several stages; a subclass says what an item is, how long, and makes batches.

    Args:
        path: a stage folder that holds the `records`, or several, whose items are mixed.
        batch_size: items of an optimiser step, of all ranks together.
        micro_batch: items of one forward pass, of all ranks together, but at least one on each; None takes all of a
            step at once. The Trainer's `accumulate_grad_batches` follows from it.
        validation: share of the questions, by hash(seed, question id), held out of training.
        max_tokens: what is longer is left out, and counted in the log.
        seed: of the order and of the held-out questions.

    Raises:
        ConfigError: a setting is out of range.
        DataError: on setting up, a row is malformed, the model does not read its ids, or nothing is left to train on.
    """

    records: ClassVar[str]  # the file in a stage's `data/`
    nothing_left: str  # what to say where there is no item to train on

    def __init__(
        self,
        path: Path | list[Path],
        *,
        batch_size: int = 16,
        micro_batch: int | None = None,
        validation: float = 0.1,
        max_tokens: int = 4096,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 1 or not 0 <= validation < 1 or max_tokens < 2:
            settings = f"batch_size {batch_size}, validation {validation}, max_tokens {max_tokens}"
            raise ConfigError(f"{settings}: batch_size must be >= 1, validation in [0, 1), max_tokens >= 2")
        folders = path if isinstance(path, list) else [path]
        self.paths = [Path(folder) / "data" / self.records for folder in folders]
        self.batch_size, self.micro_batch = batch_size, micro_batch or batch_size
        self.validation, self.max_tokens, self.seed = validation, max_tokens, seed
        self.train: list[Item] = []
        self.held_out: list[Item] = []
        self.left_out: Counter[str] = Counter()

    @staticmethod
    def check_ranks(
        ranks: int, *, batch_size: int, micro_batch: int | None = None, micro_tokens: int | None = None, **_: Any
    ) -> None:
        """Require sizes that so many ranks can share; called with all settings when a run is planned.

        Raises:
            ConfigError: they cannot.
        """
        if micro_tokens is None:
            items_of_a_pass(batch_size, micro_batch, ranks)

    def items(self) -> Iterator[tuple[str, Item]]:
        """All items, each with its question's id; what makes none is counted in `left_out`."""
        raise NotImplementedError

    def tokens(self, item: Item) -> int:
        """Length of an item, for batches of similar length."""
        raise NotImplementedError

    def collate(self, items: Sequence[Item]) -> Batch:
        """A batch of items."""
        raise NotImplementedError

    def rows(
        self, path: Path, read: Callable[[dict[str, Any], str], Record], episodes: Callable[[Record], Sequence[Episode]]
    ) -> Iterator[tuple[str, Record]]:
        """The records of a file with their places, once the model that trains is known to read their `episodes`' ids.

        A module without a policy may read any.
        """
        policy: Any = getattr(getattr(self.trainer, "lightning_module", None), "policy", None)
        for where, row in numbered_rows(path):
            record = read(row, where)
            if hasattr(policy, "tokenizer"):
                size = policy.model.config.get_text_config().vocab_size
                for episode in episodes(record):
                    require_readable(policy.tokenizer, size, episode, where)
            yield where, record

    def setup(self, stage: str) -> None:
        self.micro_batch = accumulate(self.trainer, self.batch_size, self.micro_batch)
        self.load()

    def load(self) -> None:
        """Read the items, once."""
        if self.train:
            return
        for question, item in self.items():
            place = stable_hash(self.seed, "validation", question) / 2**63
            (self.held_out if place < self.validation else self.train).append(item)
        where = ", ".join(map(str, self.paths))
        for what, count in self.left_out.items():
            log.warning("%s: %d %s left out", where, count, what)
        if not self.train:
            raise DataError(f"{where}: {self.nothing_left}")

    def train_dataloader(self) -> Batches[Item, Batch]:
        return self.batches(self.train, shuffle=True)

    def val_dataloader(self) -> Batches[Item, Batch] | list[Batch]:
        return self.batches(self.held_out, shuffle=False) if self.held_out else []

    def batches(self, items: Sequence[Item], *, shuffle: bool, **settings: Any) -> Batches[Item, Batch]:
        """This rank's batches of some items; `settings` of `Batches` go before the usual ones."""
        return Batches.of(
            self.trainer,
            items,
            self.collate,
            seed=self.seed,
            lengths=[self.tokens(item) for item in items],
            shuffle=shuffle,
            **({"batch_size": self.micro_batch} | settings),
        )
