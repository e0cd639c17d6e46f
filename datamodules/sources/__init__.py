"""Sources: one file a dataset, each reads its upstream formats as they are and yields the suite's nouns."""

from __future__ import annotations

import heapq
import itertools
import typing
from collections import Counter
from collections.abc import Iterable, Iterator

from envs.errors import ConfigError
from envs.seeds import stable_hash
from envs.types import Document, Question


class Source(typing.Protocol):
    """Where questions come from; each iteration starts anew and gives the same questions in the same order."""

    skipped: Counter[str]
    """Questions left out in the last iteration, by reason."""

    def __iter__(self) -> Iterator[Question]:
        """Stream the questions.

        Raises:
            DataError: the input is missing, malformed or holds no usable question.
        """
        ...

    def documents(self) -> Iterator[Document]:
        """Stream the dataset's own passages, each once; `Gold.documents` names their ids. Empty where it has none."""
        ...


def choose(questions: Iterable[Question], *, limit: int | None, sample: int | None, seed: int) -> Iterator[Question]:
    """Cut to the first `limit` questions, then to the `sample` of them with the smallest hash(seed, id), in that order.

    A smaller sample is a part of a larger one, and a sample as large as the input is a shuffle. Holds `sample`
    questions at a time.
    """
    first = itertools.islice(questions, limit)
    return first if sample is None else iter(heapq.nsmallest(sample, first, key=lambda q: stable_hash(seed, q.id)))


def check_sizes(**sizes: int | None) -> None:
    """Refuse a `limit` or `sample` that leaves nothing.

    Raises:
        ConfigError: one of them is below 1.
    """
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ConfigError(f"{name}: {size} leaves no question; give 1 or more, or leave it out")
