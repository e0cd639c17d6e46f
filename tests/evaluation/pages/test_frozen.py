from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import DataError
from evaluation.pages.frozen import LISTS, read, write


def one(seed: int, **more: Any) -> dict[str, Any]:
    """What one file holds of one arm and seed."""
    asked = {"title": "T", "question": "?", "command": "c", "machine": "m", "versions": {}, "notes": {}, "figures": []}
    lists = {name: [] for name in LISTS} | {"arms": [{"arm": "a", "seed": seed}], "commits": [f"c{seed}"]}
    return asked | {"baseline": "a"} | lists | more


def test_files_of_a_folder_are_one_in_the_order_of_their_seeds(tmp_path: Path) -> None:
    for seed in (10, 2):
        write(tmp_path / f"seed{seed}.json", one(seed, machine=f"m{seed // 10}", title=f"T{seed}"))
    found = read(tmp_path)
    assert [arm["seed"] for arm in found["arms"]] == [2, 10]
    assert (found["commits"], found["machine"], found["title"]) == (["c2", "c10"], "m0, m1", "T2")


def test_files_that_do_not_belong_together_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.json", one(0))
    write(tmp_path / "b.json", one(0))
    with pytest.raises(DataError, match=r"holds a of seed 0 twice"):
        read(tmp_path)
    write(tmp_path / "b.json", one(1, baseline="b"))
    with pytest.raises(DataError, match="different baselines"):
        read(tmp_path)


def test_a_file_that_was_not_made_by_freezing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"title": "T"}))
    with pytest.raises(DataError, match=r"x\.json lacks 'schema' of frozen/1: make it with python -m [^\n]*$"):
        read(path)
    write(path, {"title": "T"})
    with pytest.raises(DataError, match=r"x\.json lacks 'arms'"):
        read(path)


def test_a_list_of_figures_is_one_line(tmp_path: Path) -> None:
    write(tmp_path / "a.json", {"values": {"em": [1, 0.5, None], "f1": []}, "arms": [{"name": "a [b\\n] c"}]})
    text = (tmp_path / "a.json").read_text()
    assert '"em": [1, 0.5, null]' in text
    assert json.loads(text)["arms"] == [{"name": "a [b\\n] c"}]
