"""Sources: one file a dataset; each reads its upstream formats as they are and yields `Question` and `Document`."""

from __future__ import annotations

import heapq
import itertools
import typing
from collections.abc import Iterable, Iterator, Sequence

from common.answers import normalize_answer
from common.errors import ConfigError
from common.seeds import stable_hash
from envs.types import Document, Question

Part = tuple[float, float]


class Source(typing.Protocol):
    """A stream of questions; every iteration gives the same questions in the same order."""

    def __iter__(self) -> Iterator[Question]:
        """Stream the questions.

        Raises:
            DataError: the input is missing, malformed or holds no usable question.
        """
        ...

    def documents(self) -> Iterator[Document]:
        """Stream the dataset's own passages, each once; `Gold.documents` names their ids. Empty where it has none."""
        ...


def choose(
    questions: Iterable[Question], *, part: Part | None = None, limit: int | None, sample: int | None, seed: int
) -> Iterator[Question]:
    """Cut to a `part`, then to its first `limit`, then to the `sample` of those with the smallest hash(seed, id).

    `part` keeps the questions whose hash of the id, scaled to [0, 1), lies between its two bounds; questions of the
    same wording all take the hash of the smallest id among them. So parts that do not overlap share no question, by id
    or by text, whatever the other settings. A sample is ordered by its hashes: a smaller sample is the head of a larger
    one, and a sample as large as the input is a shuffle. Memory: `sample` questions, or all of them for a `part`.
    """
    if part is not None:
        questions = _in_part(list(questions), part)
    first = itertools.islice(questions, limit)
    return first if sample is None else iter(heapq.nsmallest(sample, first, key=lambda q: stable_hash(seed, q.id)))


def _in_part(questions: Sequence[Question], part: Part) -> Iterator[Question]:
    wordings = [normalize_answer(question.text) for question in questions]
    first: dict[str, str] = {}
    for wording, question in zip(wordings, questions, strict=True):
        first[wording] = min(first.get(wording, question.id), question.id)
    for wording, question in zip(wordings, questions, strict=True):
        if part[0] <= stable_hash("part", first[wording]) / 2**63 < part[1]:
            yield question


def check_choice(*, part: Part | None, **sizes: int | None) -> None:
    """Check that `part`, `limit` and `sample` can leave a question.

    Raises:
        ConfigError: a size is below 1, or the bounds of the part are not in order within [0, 1].
    """
    if part is not None and not 0 <= part[0] < part[1] <= 1:
        raise ConfigError(f"part: {list(part)} must be two bounds in order, within [0, 1], such as [0.0, 0.4]")
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ConfigError(f"{name}: {size} leaves no question; give 1 or more, or leave it out")
