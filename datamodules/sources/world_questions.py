"""The embedded world's questions and passages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from common.seeds import stable_hash
from datamodules.records import numbered_rows
from datamodules.sources import Part
from datamodules.sources.rows import PlainRow, Rows
from envs.types import Document, Question


class WorldQuestions(Rows):
    """One split of a world; `path` is the stage folder. `hops` keeps the questions of these lengths.

    A comparison takes two look-ups.
    """

    label = "world"

    def __init__(
        self,
        path: Path,
        split: str,
        limit: int | None = None,
        *,
        hops: Sequence[int] | None = None,
        part: Part | None = None,
        sample: int | None = None,
        seed: int = 0,
    ) -> None:
        # Salted: the world itself samples by hash(seed, id), so the smallest of these hashes are a biased sample.
        seed = stable_hash("sample", seed)
        super().__init__(
            Path(path) / "data" / "questions.jsonl", split=split, part=part, limit=limit, sample=sample, seed=seed
        )
        self._folder, self._hops = Path(path), None if hops is None else frozenset(hops)

    def question(self, row: PlainRow, default_id: str) -> Question | str:
        question = super().question(row, default_id)
        if isinstance(question, str) or self._hops is None or (question.gold and question.gold.hops in self._hops):
            return question
        return f"not of {', '.join(map(str, sorted(self._hops)))} hops"

    def documents(self) -> Iterator[Document]:
        """All passages of the world, whatever the split."""
        return passages(self._folder)


def passages(world: Path) -> Iterator[Document]:
    """All passages of a world, by its stage folder."""
    for _, row in numbered_rows(Path(world) / "data" / "corpus.jsonl"):
        yield Document(row["id"], row["title"], row["text"])
