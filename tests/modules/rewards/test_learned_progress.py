from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from envs.interfaces import RewardContext
from envs.protocols.prorag import ProRAG
from envs.types import Episode
from modules.rewards.learned_progress import learned_progress
from tests.steps import final, played, query, subanswer
from tests.tiny import byte_tokenizer

PROTOCOL = ProRAG(byte_tokenizer(), instruction="")  # pyright: ignore[reportArgumentType]


class Scorer:
    """Gives every step the score that its row says."""

    def __init__(self, *rows: Sequence[float]) -> None:
        self.rows = rows

    def score(self, episodes: Sequence[Episode]) -> list[Tensor]:
        return [torch.tensor(row) for row in self.rows]


def test_only_claims_that_score_high_are_progress() -> None:
    episode = played(
        PROTOCOL, [query("Who?"), subanswer("Ada"), query("Where?"), subanswer("Rome"), "x </answer>", final("Rome")]
    )
    context = RewardContext(PROTOCOL)
    high = Scorer([9.0, 9.0, 9.0, -1.0, 9.0, 9.0])
    assert [row.tolist() for row in learned_progress([episode], context, scorer=high)] == [[0, 1, 0, 0, 0, 0]]
    assert float(context.logged["claims_paid"].sum()) == 1
    faint = Scorer([0.0, 0.5, 0.0, math.nan, 0.0, 0.0])
    [row] = learned_progress([episode], context, scorer=faint, above=0.7)
    assert row[1] == 0, "the sigmoid of .5 is .62"
    assert bool(row[3].isnan())
