from __future__ import annotations

from pathlib import Path

from common.costs import tokens_of
from datamodules.record_stage import affordable, missing, unit_counts, units, write_counts


def test_items_are_cut_into_numbered_units(tmp_path: Path) -> None:
    cut = list(units(tmp_path, iter("abcde"), 2))
    assert [(path.name, unit) for path, unit in cut] == [
        ("00000.jsonl", ["a", "b"]),
        ("00001.jsonl", ["c", "d"]),
        ("00002.jsonl", ["e"]),
    ]
    assert list(units(tmp_path, (), 2)) == []


def test_ranks_share_the_units_and_leave_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "00002.jsonl").touch()
    share = [
        [path.stem for path, _ in missing(units(tmp_path, range(5), 1), rank=rank, world_size=2)] for rank in (0, 1)
    ]
    assert share == [["00000", "00004"], ["00001", "00003"]]


def spend(folder: Path, costs: list[int], max_tokens: int | None, *, rank: int = 0, world_size: int = 1) -> list[str]:
    """The units that a rank makes; unit n samples `costs[n]` tokens, some of them for a second agent."""
    made = []
    share = {"rank": rank, "world_size": world_size, "max_tokens": max_tokens}
    for path, (cost,) in affordable(units(folder, costs, 1), **share):
        write_counts(path, {tokens_of("policy"): cost - 1, tokens_of("reader"): 1, "judge_no_reply": 99})
        path.touch()
        made.append(path.stem)
    return made


def test_units_are_made_until_the_budget_is_spent(tmp_path: Path) -> None:
    assert spend(tmp_path / "a", [10, 10, 10, 10], 25) == ["00000", "00001", "00002"]
    assert spend(tmp_path / "b", [10, 10, 10, 10], 20) == ["00000", "00001"]
    assert spend(tmp_path / "c", [10, 10], 1) == ["00000"], "the first is always made"
    assert spend(tmp_path / "d", [10, 10], 99) == spend(tmp_path / "e", [10, 10], None) == ["00000", "00001"]


def test_a_rank_stops_at_its_equal_share_whatever_the_others_do(tmp_path: Path) -> None:
    costs = [10, 30, 10, 30, 10, 30, 10, 30]
    assert spend(tmp_path, costs, 50, rank=1, world_size=2) == ["00001"]
    assert spend(tmp_path, costs, 50, rank=0, world_size=2) == ["00000", "00002", "00004"]


def test_units_of_an_earlier_life_are_paid_from_the_same_budget(tmp_path: Path) -> None:
    spend(tmp_path, [10, 10, 10, 10], 25)
    (tmp_path / "00001.jsonl").unlink()  # killed between the counts of a unit and the unit
    (tmp_path / "00002.jsonl").unlink()
    (tmp_path / "00002.json").unlink()
    assert spend(tmp_path, [10, 10, 10, 10], 25) == ["00001", "00002"]
    assert unit_counts(tmp_path / "00001.jsonl") == {
        "cost/tokens/policy": 9,
        "cost/tokens/reader": 1,
        "judge_no_reply": 99,
    }
