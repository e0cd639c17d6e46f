"""The stage that gives a model's tokenizer the tags and words of a format."""

from __future__ import annotations

import re
from pathlib import Path

from transformers import AddedToken

from common.files import build_once
from envs.protocols.prorag import TAGS
from envs.text import load_tokenizer
from envs.token_ids import extend


class TaggedTokenizer:
    """Record stage of `tokenizer/`: that of a model, with more tokens appended; those that are there keep their ids.

    `modules.policy:load_policy(model, tokenizer=…)` gives the model rows for them. So a model of the embedded world
    learns another format: this stage over `${stage:world}/tokenizer`. (Other `tags` of the world itself would move
    most of its tokens.)

    Args:
        tokenizer: folder or hub id of the model.
        tags: what becomes a special token; those that are special tokens already stay as they are.
        words: words, or texts such as a format's instruction, whose unknown words become tokens; for a tokenizer that
            knows only whole words.
        revision: of a hub id.
    """

    def __init__(
        self,
        tokenizer: str,
        tags: tuple[str, ...] = TAGS,
        *,
        words: tuple[str, ...] = (),
        revision: str | None = None,
    ) -> None:
        self.tokenizer, self.tags, self.words, self.revision = tokenizer, tuple(tags), tuple(words), revision

    def make(self, folder: Path, *, seed: int, rank: int, world_size: int) -> None:
        """Write the tokenizer, on rank 0.

        Raises:
            ConfigError: there is no tokenizer to begin with.
        """
        if rank == 0:
            build_once(folder / "tokenizer", self._build)

    def merge(self, folder: Path, *, seed: int, world_size: int) -> dict[str, float]:
        """Headline: the size of the `vocabulary`, and how many `tags` and `words` it gained."""
        known = load_tokenizer(self.tokenizer, revision=self.revision).get_vocab()
        vocabulary = load_tokenizer(folder / "tokenizer").get_vocab()
        tags = len({*self.tags} - {*known})
        return {
            "vocabulary": float(len(vocabulary)),
            "tags": float(tags),
            "words": float(len(vocabulary) - len(known) - tags),
        }

    def _build(self, folder: Path) -> None:
        tokenizer = load_tokenizer(self.tokenizer, revision=self.revision)
        extend(tokenizer)
        tokenizer.add_special_tokens({"additional_special_tokens": list(self.tags)}, replace_extra_special_tokens=False)
        words = {word for text in self.words for word in re.findall(r"[^\W\d_]+", text)} - {*tokenizer.get_vocab()}
        tokenizer.add_tokens([AddedToken(word, single_word=True, normalized=False) for word in sorted(words)])
        tokenizer.save_pretrained(str(folder))
