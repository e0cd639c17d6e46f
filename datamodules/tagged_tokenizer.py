"""The stage that teaches a real model's tokenizer a protocol's tags."""

from __future__ import annotations

from pathlib import Path

from common.files import build_once
from envs.protocols.prorag import TAGS
from envs.text import load_tokenizer


class TaggedTokenizer:
    """A `Maker` of `tokenizer/`: that of a model, with `tags` as special tokens of their own, and a chat template.

    `modules.policy:load_policy(model, tokenizer=…)` gives the model rows for them.

    Args:
        tokenizer: folder or hub id of the model.
        tags: what becomes a token; those that are special tokens already stay as they are.
        revision: of a hub id.
    """

    def __init__(self, tokenizer: str, tags: tuple[str, ...] = TAGS, *, revision: str | None = None) -> None:
        self.tokenizer, self.tags, self.revision = tokenizer, tuple(tags), revision

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Write the tokenizer, on rank 0.

        Raises:
            ConfigError: there is no tokenizer there.
        """
        if rank == 0:
            build_once(folder / "tokenizer", self._build)

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Headline: the size of the `vocabulary`, and how many `tags` it was taught."""
        taught, known = load_tokenizer(folder / "tokenizer"), load_tokenizer(self.tokenizer, revision=self.revision)
        return {"vocabulary": float(len(taught)), "tags": float(len(taught) - len(known))}

    def _build(self, folder: Path) -> None:
        tokenizer = load_tokenizer(self.tokenizer, revision=self.revision)
        tokenizer.add_special_tokens({"additional_special_tokens": list(self.tags)}, replace_extra_special_tokens=False)
        tokenizer.save_pretrained(str(folder))
