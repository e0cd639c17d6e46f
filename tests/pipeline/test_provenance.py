"""Which code counts: the suite's own, and what an experiment's targets add to it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.provenance import provenance, source_hash


def test_the_source_hash_sees_code_but_neither_tests_nor_reports(tmp_path: Path) -> None:
    def hashed(name: str, **changed: str) -> str:
        """Of a suite of its own, for the code is read once."""
        files = {"train.py": "1", "envs/a.py": "1", "tests/test_a.py": "1", "examples/r.py": "1", "envs/notes.md": "1"}
        for file, text in (files | changed).items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(text)
        return source_hash({}, tmp_path / name)

    before = hashed("before")
    assert hashed("same", **{"tests/test_a.py": "2", "examples/r.py": "2", "envs/notes.md": "2"}) == before
    assert len({before, hashed("changed", **{"envs/a.py": "2"}), hashed("added", **{"envs/b.py": "1"})}) == 3


@pytest.mark.parametrize("file", ["lab_reward.py", "lab_house/rewards.py", "lab_house/parts/helper.py"])
def test_the_source_hash_sees_what_targets_name_outside_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    for name in ("lab_reward.py", "lab_house/rewards.py", "lab_house/parts/helper.py", "lab_other.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("worth = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"callbacks": {"x": [{"reward": {"target": "lab_reward:worth"}}, {"target": "lab_house.rewards:worth"}]}}
    suite, before = source_hash({}), source_hash(settings)
    assert before != suite
    (tmp_path / "lab_other.py").write_text("worth = 2\n")
    assert source_hash(settings) == before, "no target names it"
    (tmp_path / file).write_text("worth = 2\n")
    assert source_hash(settings) != before
    assert source_hash({}) == suite
    assert not {"lab_reward", "lab_house"} & sys.modules.keys(), "those of a finished stage are not imported"


def test_the_source_hash_leaves_installed_libraries_to_their_versions() -> None:
    targets = ["lightning.pytorch.callbacks:ModelCheckpoint", "json:loads", "modules.grpo:GRPO", "never.imported:X"]
    assert source_hash({"trainer": [{"target": target} for target in targets]}) == source_hash({})


def test_provenance_holds_versions_and_source() -> None:
    made = provenance({})
    assert made["versions"]["python"].startswith("3.")
    assert made["source"] == source_hash({})
