"""Damaged files of a model's folder: each is named, whichever library would have read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import DataError
from common.model_files import check_model_files
from envs.text import load_tokenizer
from modules.policy import load_policy
from tests.tiny import byte_tokenizer, tiny_policy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_policy(byte_tokenizer()).save(tmp_path / "model")
    return tmp_path / "model"


def test_a_whole_model_is_loaded(folder: Path) -> None:
    check_model_files(folder)
    assert load_policy(str(folder), device="cpu").model.config.get_text_config().hidden_size == 32


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


DAMAGES: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("model.safetensors", half),
    ("model.safetensors", lambda content: content[:-1]),
    ("model.safetensors", lambda content: content + b"x"),
    ("model.safetensors", lambda _: b""),
    ("model.safetensors", lambda _: b"{}"),
    *((name, change) for name in ("config.json", "generation_config.json", "tokenizer.json") for change in (
        half, lambda _: b"", lambda _: b"[]", lambda _: b"\xff\xfe\x00",
    )),
    ("tokenizer.json", lambda _: b"{}"),
    ("tokenizer_config.json", lambda _: b"[]"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change"), DAMAGES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(DAMAGES)])
def test_a_damaged_file_is_named(folder: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    for load in (lambda: load_policy(str(folder), device="cpu"), lambda: load_tokenizer(folder)):
        with pytest.raises(DataError) as raised:
            load()
        assert str(raised.value).startswith(f"{folder / name} is damaged (")
        assert str(raised.value).endswith(f"): replace the file, or make {folder} again")
        assert "\n" not in str(raised.value)
