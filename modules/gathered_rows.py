"""Per-item figures of held-out data, gathered from ranks that computed some items twice."""

from __future__ import annotations

from torch import Tensor


def each_once(rows_MC: Tensor) -> Tensor:
    """`[N, C]` float32: the rows of N items by their numbers, which are the first column; of several rows the first.

    A last batch is filled up with items that came before, and ranks take turns: so a measure over the rows as they are
    gathered would depend on the sizes of batches and the number of ranks.
    """
    numbers = rows_MC[:, 0].tolist()
    first = {number: row for row, number in reversed(list(enumerate(numbers)))}
    return rows_MC[[first[number] for number in sorted(first)]].float()
