"""Display names of arms: those that leave no doubt which arm is meant."""

from __future__ import annotations

from evaluation.pages.arm_names import distinct, named


def test_a_name_that_is_another_arm_s_name_or_id_is_not_used() -> None:
    names = {"a": "b", "c": "C", "d": "D", "e": "D"}
    assert distinct(names, ["a", "b", "c", "d", "e"]) == {"c": "C"}
    results = named({"names": {"a": "b", "c": "C"}, "rows": [{"arm": "a"}, {"arm": "b"}, {"arm": "c"}]})
    assert [row["arm"] for row in results["rows"]] == ["a", "b", "C"]
