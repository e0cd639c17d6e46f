"""Pairs of turns as training data of a policy: two answers to one context, of which one is better."""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import DataError
from datamodules.pair_data import Pairs, Sides
from envs.packing import PackedSequence, TurnPairBatch, collate_turn_pairs, context, last_turn
from envs.pairs import Pair


class TurnPairData(Pairs[PackedSequence, TurnPairBatch]):
    """The pairs as preference optimisation reads them: the last turns of two episodes, each given its own context.

    Pairs whose turns do not answer the same context (`pairs_per_tree` of `datamodules.preferences:Preferences`) are
    left out and counted in the log.
    """

    def sides(self, pair: Pair, where: str) -> tuple[PackedSequence, PackedSequence] | str:
        """The two turns.

        Raises:
            DataError: a side has no sampled tokens that train, or both have the same.
        """
        chosen, rejected = last_turn(pair.chosen), last_turn(pair.rejected)
        if chosen is None or rejected is None:
            side = "chosen" if chosen is None else "rejected"
            raise DataError(f"{where}: the {side} episode does not end in a turn with sampled tokens that train")
        if context(chosen) != context(rejected):
            return "whose turns do not answer the same context"
        if chosen.ids_T.equal(rejected.ids_T):
            raise DataError(f"{where}: both sides are the same tokens, so neither can be better: make the pairs again")
        return chosen, rejected

    def collate(self, items: Sequence[Sides[PackedSequence]]) -> TurnPairBatch:
        return collate_turn_pairs(items)
