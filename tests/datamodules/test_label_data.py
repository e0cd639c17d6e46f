from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer

from common.errors import DataError
from datamodules.label_data import LabelData
from datamodules.records import labelled_to_row, write_rows
from envs.labelled_steps import LabelledEpisode
from envs.protocols.prorag import ProRAG
from tests.labelled import path, write_labels


@pytest.fixture(scope="module")
def folder(protocol: ProRAG, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labels(tmp_path_factory.mktemp("labels"), protocol, 20)


def loaded(path: Path | list[Path], **settings: Any) -> LabelData:
    data = LabelData(path, **settings)
    data.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    data.setup("fit")
    return data


def test_a_batch_has_the_labels_of_its_steps_and_groups_of_one_question_and_kind(
    protocol: ProRAG, tmp_path: Path
) -> None:
    one = path(protocol, "query Who?", "subanswer Ada", "query Which?", "subanswer Eve")
    other = path(protocol, "query Who?", "subanswer Bob", identity="q1")
    rows = [LabelledEpisode(one, (1.0, 0.25, None, 0.5)), LabelledEpisode(other, (None, 0.0))]
    write_rows(tmp_path / "data" / "labels.jsonl", map(labelled_to_row, rows))
    data = loaded(tmp_path, validation=0, batch_size=2)
    [batch] = data.train_dataloader()
    found = {}
    for place in range(len(batch)):
        row = int(batch.sequences.row_P[place])
        own = batch.sequences.position_index_BT[row] == place
        text = protocol.codec.decode(batch.sequences.ids_BT[row][own].tolist())
        found[text.split(".")[0]] = (float(batch.label_P[place]), int(batch.group_P[place]))
    assert {name: label for name, (label, _) in found.items()} == {
        "I say Who?": 1.0, "I say Ada": 0.25, "I say Eve": 0.5, "I say Bob": 0.0,
    }  # fmt: skip
    groups = {name: group for name, (_, group) in found.items()}
    assert groups["I say Ada"] == groups["I say Eve"]
    assert len({groups[name] for name in ("I say Who?", "I say Ada", "I say Bob")}) == 3


def test_questions_are_held_out_whole_and_every_step_comes_once_an_epoch(folder: Path) -> None:
    data = loaded(folder, validation=0.4, batch_size=1)
    numbers = [
        sorted(number for batch in loader for number in batch.number_P.tolist())
        for loader in (data.train_dataloader(), data.val_dataloader())
    ]
    assert sorted(numbers[0] + numbers[1]) == list(range(80))
    assert not {number // 4 for number in numbers[0]} & {number // 4 for number in numbers[1]}
    assert 12 <= len(numbers[1]) <= 52


def test_a_question_with_too_many_tokens_is_cut_into_items_of_their_own_groups(folder: Path) -> None:
    whole = loaded(folder, validation=0)
    longest = max(len(sequence) for item in whole.train for sequence in item)
    parts = loaded(folder, validation=0, max_tokens=2 * longest)
    assert len(whole.train) == 20
    assert len(parts.train) == 40
    groups = [{group for sequence in item for group in sequence.groups} for item in parts.train]
    assert [len(own) for own in groups] == [1] * 40
    assert len(set.union(*groups)) == 40


def test_a_sequence_that_is_too_long_is_left_out_and_counted(
    protocol: ProRAG, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    short, long = path(protocol, "query Who?"), path(protocol, f"query {'Who ' * 40}?", identity="q1")
    rows = [LabelledEpisode(one, (1.0,)) for one in (short, long)]
    write_rows(tmp_path / "data" / "labels.jsonl", map(labelled_to_row, rows))
    assert len(loaded(tmp_path, validation=0, max_tokens=100).train) == 1
    assert "1 sequences of more than 100 tokens left out" in caplog.text
    with pytest.raises(DataError, match="no labelled step to train on"):
        loaded(tmp_path, validation=0, max_tokens=10)


def test_several_stages_are_learnt_together(folder: Path) -> None:
    data = loaded([folder, folder], validation=0)
    numbers = [number for item in data.train for sequence in item for number in sequence.numbers]
    assert sorted(numbers) == list(range(160))


def test_labels_that_do_not_match_their_steps_are_refused(protocol: ProRAG, tmp_path: Path) -> None:
    one = path(protocol, "query Who?")
    for labels in ((), (1.5,), (1.0, 0.0)):
        write_rows(tmp_path / "data" / "labels.jsonl", [labelled_to_row(LabelledEpisode(one, labels))])
        with pytest.raises(DataError, match=r"labels.jsonl:1: a row needs one label a step"):
            loaded(tmp_path)
