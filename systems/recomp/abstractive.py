"""Abstractive compressor of RECOMP (Xu et al. 2023, arXiv 2310.04408): a summary that a model of its own writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from common.costs import counted
from common.errors import ConfigError
from envs.protocols.rendering import shown_first
from envs.requests import Control, Data
from envs.text import Codec
from envs.types import Hit
from systems.recomp.writers import Writer


class AbstractiveCompressor:
    """Shows a summary of all passages in the place of the first; an empty summary shows nothing at all.

    The prompt is the authors': `Question: …`, ` Document: …` with the passages without their titles, ` Summary: `.
    What does not fit is cut from the end of the passages.

    Args:
        writer: the model that writes.
        source_tokens: of the prompt at most.
        summary_tokens: of the summary at most.

    Raises:
        ConfigError: a number is below 1.
    """

    def __init__(self, writer: Writer, *, source_tokens: int = 1024, summary_tokens: int = 512) -> None:
        if min(source_tokens, summary_tokens) < 1:
            settings = f"source_tokens {source_tokens}, summary_tokens {summary_tokens}"
            raise ConfigError(f"{settings}: each must be at least 1")
        self.writer, self.source_tokens, self.summary_tokens = writer, source_tokens, summary_tokens
        self._codec = Codec(writer.tokenizer)

    @property
    def counts(self) -> Counter[str]:
        """What the writer has read and written."""
        return counted(self.writer)

    def compress(self, question: str, hits: Sequence[Hit]) -> list[Hit]:
        """All hits, the summary in the first."""
        documents = "\n".join(hit.document.text for hit in hits)
        summary = self.writer.write(self._prompt(question, documents), self.summary_tokens)
        return shown_first(hits, [summary, *[""] * (len(hits) - 1)])

    def _prompt(self, question: str, documents: str) -> tuple[int, ...]:
        codec = self._codec
        before = codec.encode([Control("Question: "), Data(question), Control("\n Document: ")])
        after = codec.control("\n Summary: ")
        room = max(0, self.source_tokens - len(before) - len(after))
        return before + codec.data(documents)[:room] + after
