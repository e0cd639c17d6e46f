"""What a manifest must be for its readers: one line otherwise, that says what to remove."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import DataError
from common.manifests import load_manifest

WHOLE: dict[str, Any] = {
    **{"kind": "fit", "source": "abc", "commit": None, "seconds": 1.5, "versions": {"torch": "2"}},
    **{"inputs": {"sft": {"artifact": "sft-1", "made": "def"}}, "metrics": {"em": 0.5}, "costs": {}},
    "files": {"data/all.jsonl": [6, "0" * 64]},
}


def test_a_whole_manifest_is_returned(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(WHOLE))
    assert load_manifest(tmp_path, *WHOLE) == WHOLE


@pytest.mark.parametrize(
    ("change", "why"),
    [
        *(({key: []}, f"'{key}' is a list") for key in ("source", "inputs", "versions", "metrics", "files")),
        ({"seconds": "1"}, "'seconds' is a str"),
        ({"commit": 3}, "'commit' is a int"),
        ({"inputs": {"sft": "sft-1"}}, "no artifact of input 'sft'"),
        ({"inputs": {"sft": {"made": "def"}}}, "no artifact of input 'sft'"),
        ({"files": {"a": 3}}, "no size and hash of 'a'"),
        ({"files": {"a": [3]}}, "no size and hash of 'a'"),
        ({"files": {"a": ["3", "0"]}}, "no size and hash of 'a'"),
    ],
)
def test_a_value_of_another_type_is_named(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(WHOLE | change))
    with pytest.raises(DataError) as raised:
        load_manifest(tmp_path)
    assert str(raised.value) == f"{path} is damaged ({why}): remove {tmp_path} to make it again"


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"manifest.json: No such file or directory$"):
        load_manifest(tmp_path)
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(DataError, match=r"manifest.json: Is a directory$"):
        load_manifest(tmp_path)
