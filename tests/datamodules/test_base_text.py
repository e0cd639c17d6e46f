from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from common.errors import ConfigError, DataError
from datamodules.base_text import WorldText
from datamodules.world_data import WorldData
from envs.protocols.prorag import TAGS
from envs.text import load_tokenizer


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    stage = WorldData(people=40, cities=12, works=20, organisations=15, countries=4, questions=60)
    stage.make(folder, seed=5, rank=0, world_size=1)
    return folder


def text(world: Path, *, rank: int = 0, world_size: int = 1, **settings: Any) -> WorldText:
    data = WorldText(world, **{"sequences": 24, "batch_size": 4, "tokens": 300, "copying": 0.25} | settings)
    data.setup("fit")
    data.trainer = cast(Any, SimpleNamespace(world_size=world_size, global_rank=rank, current_epoch=0))
    return data


def test_no_control_tag_and_no_unknown_word_is_ever_said(world: Path) -> None:
    tokenizer = load_tokenizer(world / "tokenizer")
    never = torch.tensor(tokenizer.convert_tokens_to_ids([*TAGS, "<unk>"]))
    for batch in text(world).train_dataloader():
        assert not torch.isin(batch.ids_BT, never).any()


def test_the_first_sequences_repeat_themselves_and_only_what_is_said_again_is_trained(world: Path) -> None:
    end = load_tokenizer(world / "tokenizer").eos_token_id
    sequence = text(world).sequence(0)
    ids, mask = sequence.ids_T.tolist(), sequence.loss_mask_T.tolist()
    first = ids[: ids.index(end)]
    half = mask.index(True)
    assert first[:half] == first[half : 2 * half]
    assert all(mask[half : len(first)])


def test_passages_are_read_but_not_trained(world: Path) -> None:
    data = text(world, copying=0.0, shares={"session": 1})
    tokenizer = load_tokenizer(world / "tokenizer")
    for number in range(10):
        sequence = data.sequence(number)
        trained = tokenizer.decode(sequence.ids_T[sequence.loss_mask_T])
        assert "Doc" in tokenizer.decode(sequence.ids_T)
        assert "Doc" not in trained
        assert 0.1 < sequence.loss_mask_T.float().mean() < 0.6


def test_the_same_seed_gives_the_same_batches_and_another_seed_others(world: Path) -> None:
    one, same, other = (list(text(world, seed=seed).train_dataloader()) for seed in (1, 1, 2))
    assert len(one) == 6
    assert all(torch.equal(a.ids_BT, b.ids_BT) for a, b in zip(one, same, strict=True))
    assert not any(torch.equal(a.ids_BT, b.ids_BT) for a, b in zip(one, other, strict=True))


def test_wrong_settings_and_a_missing_world_are_named(world: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'riddle', which is not a drill; there are plan, reading, session"):
        WorldText(world, sequences=10, shares={"riddle": 1})
    with pytest.raises(ConfigError, match="copying 2"):
        WorldText(world, sequences=10, copying=2)
    with pytest.raises(ConfigError, match="copying and first in"):
        WorldText(world, sequences=10, first=-0.1)
    for shares in ({}, {"plan": 0.0}, {"plan": 2.0, "reading": -1.0}):
        with pytest.raises(ConfigError, match="none may be below 0, and one must be above"):
            WorldText(world, sequences=10, shares=shares)
    with pytest.raises(DataError, match="no world at"):
        WorldText(tmp_path, sequences=10).setup("fit")
