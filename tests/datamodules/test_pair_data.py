from __future__ import annotations

from pathlib import Path

import pytest
from lightning.pytorch import Trainer

from common.errors import DataError
from datamodules.pair_data import PairData
from datamodules.records import pair_to_row, write_rows
from envs.protocols.prorag import ProRAG
from tests.steps import toy_pairs
from tests.tiny import byte_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    byte_tokenizer().save_pretrained(folder)
    write_rows(folder / "data" / "pairs.jsonl", map(pair_to_row, toy_pairs(ProRAG(folder, instruction=""), 40)))
    return folder


def loaded(folder: Path, **settings: float) -> PairData:
    data = PairData(folder, **settings)  # type: ignore[arg-type]
    data.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    data.setup("fit")
    return data


def test_a_batch_scores_the_last_step_of_both_sides(folder: Path) -> None:
    data = loaded(folder, validation=0)
    batch = next(iter(data.train_dataloader()))
    decode = ProRAG(folder).codec.decode
    for n in range(len(batch)):
        for side, word in ((batch.chosen_N, " good "), (batch.rejected_N, " bad ")):
            position = int(side[n])
            row = int(batch.sequences.row_P[position])
            tokens = batch.sequences.ids_BT[row][batch.sequences.position_index_BT[row] == position]
            assert word.strip() in decode(tokens.tolist())
            assert decode(
                batch.sequences.ids_BT[row, : int(batch.sequences.observed_P[position]) + 1].tolist()
            ).endswith("</retrieval>")


def test_every_pair_comes_once_an_epoch(folder: Path) -> None:
    data = loaded(folder, validation=0, batch_size=8)
    assert sorted(n for batch in data.train_dataloader() for n in batch.number_N.tolist()) == list(range(40))


def test_what_is_too_long_is_left_out_and_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    lengths = sorted(max(len(a.ids), len(b.ids)) for _, a, b in loaded(folder, validation=0).train)
    data = loaded(folder, validation=0, max_tokens=lengths[9])
    assert max(len(side.ids) for _, *both in data.train for side in both) <= lengths[9]
    assert f"{40 - len(data.train)} pairs of more than {lengths[9]} tokens left out" in caplog.text
    with pytest.raises(DataError, match=r"pairs.jsonl: no pair to train on is left"):
        loaded(folder, max_tokens=2)
