"""Pairs of turns as batches: whose tokens train, in which context, and what is left out or refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer

from common.errors import DataError
from datamodules.records import pair_to_row, write_rows
from datamodules.turn_pair_data import TurnPairData
from envs.pairs import Pair
from envs.protocols.prorag import ProRAG
from tests.steps import played, query, subanswer, toy_pairs
from tests.tiny import byte_tokenizer

PROTOCOL = ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type]


def loaded(folder: Path, pairs: Sequence[Pair], **settings: Any) -> TurnPairData:
    write_rows(folder / "data" / "pairs.jsonl", map(pair_to_row, pairs))
    data = TurnPairData(folder, **({"validation": 0.0, "batch_size": 4} | settings))
    data.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    data.setup("fit")
    return data


def sibling_claims(first: str = "Who?", other: str = "Who?") -> Pair:
    """Sub-answers after a query; with other queries they are no answers to one context."""
    sides = [
        replace(played(PROTOCOL, [query(asked), subanswer(claim)]), status=None)
        for asked, claim in ((first, "Ada"), (other, "Bob"))
    ]
    sides[1].turns[1].uid += "/sibling"
    return Pair(sides[0], sides[1])


def test_only_the_last_turn_of_each_side_trains_and_nothing_comes_after_it(tmp_path: Path) -> None:
    data = loaded(tmp_path, [sibling_claims(), *toy_pairs(PROTOCOL, 3)])
    batch = next(iter(data.train_dataloader()))
    decode = PROTOCOL.codec.decode
    assert sorted(batch.number_N.tolist()) == [0, 1, 2, 3]
    assert len(batch.sequences) == 2 * len(batch) == 8
    trained = {}
    for row, number in enumerate([*batch.number_N.tolist(), *batch.number_N.tolist()]):
        mask_T, ids_T = batch.sequences.loss_mask_BT[row], batch.sequences.ids_BT[row]
        trained[number, row < 4] = decode(ids_T[mask_T].tolist())
        end = int(mask_T.nonzero().max())
        assert not batch.sequences.attention_BT[row, end + 1 :].any(), "passages found by the turn are no part of it"
        if number == 0:
            before = decode(ids_T[: int(mask_T.int().argmax())].tolist())
            assert "<retrieval>" in before
            assert before.rstrip().endswith("<step>")
    assert trained[0, True] == subanswer("Ada")
    assert trained[0, False] == subanswer("Bob")
    assert (trained[1, True], trained[1, False]) == (query("good 0?"), query("bad 0?"))


def test_turns_of_different_contexts_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = loaded(tmp_path, [sibling_claims("Who?", "When?"), sibling_claims(), sibling_claims("a", "b")])
    assert [number for number, *_ in data.train] == [1]
    assert "2 pairs whose turns do not answer the same context left out" in caplog.text


def test_a_pair_with_equal_sides_is_one_line_that_names_it(tmp_path: Path) -> None:
    [pair, other] = toy_pairs(PROTOCOL, 2)
    with pytest.raises(DataError, match=r"pairs\.jsonl:2: both sides are the same tokens") as error:
        loaded(tmp_path, [pair, Pair(other.chosen, other.chosen)])
    assert "\n" not in str(error.value)


def test_a_side_without_sampled_tokens_is_one_line_that_names_it(tmp_path: Path) -> None:
    [pair] = toy_pairs(PROTOCOL, 1)
    silent = replace(pair.rejected, turns=[replace(pair.rejected.turns[0], trainable=False)])
    with pytest.raises(DataError, match=r"pairs\.jsonl:1: the rejected episode does not end in a turn"):
        loaded(tmp_path, [Pair(pair.chosen, silent)])
    with pytest.raises(DataError, match=r"pairs\.jsonl:1: the chosen episode does not end in a turn"):
        loaded(tmp_path, [Pair(replace(pair.chosen, turns=[]), replace(pair.rejected, turns=[]))])
