"""Text for a base model of the embedded world: other worlds of its size, made on the fly, in no format."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from random import Random
from typing import Any

from lightning.pytorch import LightningDataModule

from common.errors import ConfigError, DataError
from common.seeds import stable_hash
from datamodules.batches import Batches, items_of_a_pass
from envs.packing import PackedSequence, SequenceBatch, collate, pack
from envs.text import load_tokenizer
from envs.types import TrainingSequence
from envs.world.drills import DRILLS, Drills, Piece
from envs.world.names import Names
from envs.world.vocabulary import END, english

PER_WORLD = 16  # sequences that a world serves
REPEATED = (4, 8, 16, 24)  # how many tokens are said again


class WorldText(LightningDataModule):
    """Sequences of drills in random worlds, each a function of hash(seed, its number).

    The loss is on what follows from the text before it. The first sequences only repeat random tokens: copying is
    learnt fastest from these.

    Args:
        world: stage folder of a made world: its tokenizer and size are used, none of its facts.
        sequences: how many in all, one epoch.
        batch_size: sequences of one batch of all ranks.
        tokens: length of a sequence; texts follow each other in it, and the last is cut.
        copying: share of the sequences that only repeat.
        chat: questions stand in the tokenizer's chat template, as a policy will be asked, else after "Question:".
        first: share of searches whose right passage comes first; else it is anywhere.
        shares: how often each kind of drill (`envs.world.drills`) is drawn, in proportion.

    Raises:
        ConfigError: a setting is out of range.
        DataError: there is no world.
    """

    def __init__(
        self,
        world: Path,
        *,
        sequences: int,
        batch_size: int = 16,
        tokens: int = 512,
        copying: float = 0.1,
        chat: bool = True,
        first: float = 0.8,
        shares: dict[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.shares = dict.fromkeys(DRILLS, 1.0) if shares is None else dict(sorted(shares.items()))
        if unknown := set(self.shares) - set(DRILLS):
            raise ConfigError(f"shares name {min(unknown)!r}, which is not a drill; there are {', '.join(DRILLS)}")
        if not sum(self.shares.values()) > 0 or min(self.shares.values()) < 0:
            raise ConfigError(f"shares {self.shares}: none may be below 0, and one must be above")
        if min(sequences, batch_size) < 1 or tokens < 2 or not (0 <= copying <= 1 and 0 <= first <= 1):
            settings = (
                f"sequences {sequences}, batch_size {batch_size}, tokens {tokens}, copying {copying}, first {first}"
            )
            raise ConfigError(f"{settings}: the first two must be >= 1, tokens >= 2, copying and first in [0, 1]")
        self.world, self.sequences, self.batch_size, self.tokens = Path(world), sequences, batch_size, tokens
        self.copying, self.chat, self.first, self.seed = copying, chat, first, seed

    @staticmethod
    def check_ranks(ranks: int, *, batch_size: int, **_: Any) -> None:
        """Require a batch that so many ranks can share; called with all settings when a run is planned.

        Raises:
            ConfigError: they cannot.
        """
        items_of_a_pass(batch_size, None, ranks)

    def setup(self, stage: str) -> None:
        size = _size(self.world)
        self._tokenizer = load_tokenizer(self.world / "tokenizer")
        names = Names(size, english())
        self._drills = functools.lru_cache(maxsize=1)(
            lambda k: Drills(
                names, seed=stable_hash("base", self.seed, "world", k), asked=self._asked(), first=self.first
            )
        )
        self._end = self._tokenizer.get_vocab()[END]
        special = set(self._tokenizer.all_special_ids)
        self._words = [number for number in range(len(self._tokenizer)) if number not in special]

    def train_dataloader(self) -> Batches[int, SequenceBatch]:
        return Batches.of(
            self.trainer,
            range(self.sequences),
            lambda numbers: collate([self.sequence(number) for number in numbers]),
            batch_size=self.batch_size,
            seed=self.seed,
            shuffle=False,
        )

    def _asked(self) -> str:
        """Template of a question, `{question}` its place."""
        if not self.chat:
            return "Question: {question}"
        message = [{"role": "user", "content": "{question}"}]
        return str(self._tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))

    def sequence(self, number: int) -> PackedSequence:
        """The sequence of this number, `tokens` long."""
        rng = Random(stable_hash("base", self.seed, "sequence", number))
        ids: list[int] = []
        mask: list[int] = []
        while len(ids) < self.tokens:
            if number < self.copying * self.sequences:
                more, trained = self._repeats(rng)
            else:
                more, trained = self._encoded(self._drill(number, rng))
            ids += (*more, self._end)
            mask += (*trained, 0)
        T = self.tokens
        return pack(TrainingSequence(tuple(ids[:T]), tuple(mask[:T]), (-1,) * T, (0.0,) * T, ()))

    def _repeats(self, rng: Random) -> tuple[list[int], list[int]]:
        """Random tokens repeated two or three times, trained from the second time on."""
        said, times = rng.choices(self._words, k=rng.choice(REPEATED)), rng.choice((2, 3))
        return said * times, [0] * len(said) + [1] * len(said) * (times - 1)

    def _drill(self, number: int, rng: Random) -> list[Piece]:
        drills = self._drills(number // PER_WORLD)
        return drills.draw(rng.choices(list(self.shares), list(self.shares.values()))[0], rng)

    def _encoded(self, pieces: list[Piece]) -> tuple[list[int], list[int]]:
        encoded = self._tokenizer([text for text, _ in pieces], add_special_tokens=False).input_ids
        ids = [token for tokens in encoded for token in tokens]
        return ids, [int(learnt) for tokens, (_, learnt) in zip(encoded, pieces, strict=True) for _ in tokens]


def _size(world: Path) -> dict[str, int]:
    """Number of entities of each kind in a made world."""
    path = world / "data" / "world.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))["settings"]["counts"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"no world at {world}: {path} cannot be read; give the folder of a made world") from error
