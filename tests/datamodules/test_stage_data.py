"""What all data of stages share: settings and token ids that are refused, questions that are held out whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import ConfigError, DataError
from datamodules.episode_data import EpisodeData
from datamodules.label_data import LabelData
from datamodules.pair_data import PairData
from datamodules.records import episode_to_row, pair_to_row, write_rows
from datamodules.stage_data import StageData
from datamodules.turn_pair_data import TurnPairData
from envs.protocols.prorag import TAGS, ProRAG
from tests.labelled import write_labels
from tests.steps import toy_pairs
from tests.tiny import byte_tokenizer, tiny_policy

KINDS = (EpisodeData, LabelData, PairData, TurnPairData)
every_kind = pytest.mark.parametrize("kind", KINDS)
Kind = type[StageData[Any, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stage of twenty questions that has records of every sort."""
    folder = tmp_path_factory.mktemp("stage")
    protocol = ProRAG(byte_tokenizer(), instruction="")  # type: ignore[arg-type]
    pairs = toy_pairs(protocol, 40)
    write_labels(folder, protocol, 20)
    write_rows(folder / "data" / "pairs.jsonl", map(pair_to_row, pairs))
    write_rows(folder / "data" / "episodes.jsonl", (episode_to_row(pair.chosen) for pair in pairs))
    return folder


def loaded(kind: Kind, folder: Path, policy: Any = None, **settings: Any) -> StageData[Any, Any]:
    data = kind(folder, **settings)
    module = SimpleNamespace(policy=policy)
    data.trainer = SimpleNamespace(current_epoch=0, global_rank=0, world_size=1, lightning_module=module)  # type: ignore[assignment]
    data.setup("fit")
    return data


@every_kind
@pytest.mark.parametrize("setting", [{"batch_size": 0}, {"validation": 1.0}, {"max_tokens": 1}])
def test_a_setting_out_of_range_is_refused(kind: Kind, setting: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch_size must be >= 1, validation in"):
        kind(tmp_path, **setting)


@every_kind
def test_ids_of_another_tokenizer_than_the_models_are_refused(kind: Kind, folder: Path) -> None:
    loaded(kind, folder, tiny_policy(byte_tokenizer()))
    with pytest.raises(DataError, match=rf"{kind.records}:1: its token ids are those of another tokenizer"):
        loaded(kind, folder, tiny_policy(byte_tokenizer(TAGS[::-1])))


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_both_sides_of_a_pair_are_read(side: str, tmp_path: Path) -> None:
    [pair] = toy_pairs(ProRAG(byte_tokenizer(), instruction=""), 1)  # type: ignore[arg-type]
    turn = getattr(pair, side).turns[-1]
    policy = tiny_policy(byte_tokenizer())
    tokens = len(policy.tokenizer)
    getattr(pair, side).turns[-1] = replace(turn, action_ids=(tokens, *turn.action_ids[1:]))
    write_rows(tmp_path / "data" / "pairs.jsonl", [pair_to_row(pair)])
    with pytest.raises(DataError, match=rf"pairs.jsonl:1: token id {tokens} is none of the model's"):
        loaded(PairData, tmp_path, policy)
    policy.model.resize_token_embeddings(tokens + 1)
    assert loaded(PairData, tmp_path, policy, validation=0).train, "a model may have more rows than tokens"


@every_kind
def test_questions_are_held_out_whole(kind: Kind, folder: Path) -> None:
    data = loaded(kind, folder, validation=0.4)
    parts = [question for question, _ in data.items()]
    train, held_out = len(data.train), len(data.held_out)
    per_question = len(parts) // 20
    assert train + held_out == len(parts) == 20 * per_question
    assert train % per_question == held_out % per_question == 0
    assert 3 <= held_out // per_question <= 13
    assert loaded(kind, folder, validation=0.0).held_out == []


@every_kind
def test_what_is_too_long_leaves_nothing_to_train_on(
    kind: Kind, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataError, match=rf"{kind.records}: no .* to train on"):
        loaded(kind, folder, max_tokens=2)
    assert "of more than 2 tokens left out" in caplog.text
