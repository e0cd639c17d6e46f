"""Merging: maps, lists, `null`, a new target; and stages written by what they differ in from another."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigError
from pipeline.documents import Document, from_overrides
from pipeline.loader import Configuration, load
from pipeline.merging import merge
from pipeline.plan import Plan


def merged(*values: dict) -> dict:
    documents = [Document(value, _marks(value)) for value in values]
    return merge(documents).value


def _marks(value: object, key: tuple = ()) -> dict:
    marks = {key: "x.yaml:1"}
    for name, item in value.items() if isinstance(value, dict) else ():
        marks |= _marks(item, (*key, name))
    return marks


def test_maps_merge_and_lists_replace() -> None:
    base = {"parts": {"a": {"x": 1, "hops": [1, 2]}, "b": 2}}
    assert merged(base, {"parts": {"a": {"y": 3, "hops": [4]}}}) == {
        "parts": {"a": {"x": 1, "y": 3, "hops": [4]}, "b": 2}
    }


def test_a_new_target_drops_the_arguments_of_the_old_one() -> None:
    base = {"stages": {"rl": {"module": {"target": "a:A", "lr": 1, "reward": {"target": "r:R", "k": 1}}}}}
    assert merged(base, {"stages": {"rl": {"module": {"target": "b:B", "beta": 2}}}}) == {
        "stages": {"rl": {"module": {"target": "b:B", "beta": 2}}}
    }
    kept = merged(base, {"stages": {"rl": {"module": {"reward": {"target": "q:Q"}}}}})
    assert kept["stages"]["rl"]["module"] == {"target": "a:A", "lr": 1, "reward": {"target": "q:Q"}}


@pytest.mark.parametrize("key", ["stages", "stages.rl.callbacks", "stages.rl.module.rewards", "parts"])
def test_null_removes_a_named_entry_and_nothing_else(key: str) -> None:
    entry = {"process": {"target": "a:A"}, "answer": {"target": "b:B"}}
    base = {"stages": {"rl": {"module": {"target": "m:M", "rewards": dict(entry)}, "callbacks": dict(entry)}}}
    base["parts"] = dict(entry)
    base["stages"] |= entry
    inside = merged(base, from_overrides([f"{key}.process=null"]).value)
    for name in key.split("."):
        inside = inside[name]
    assert "process" not in inside
    assert inside["answer"] == {"target": "b:B"}
    with pytest.raises(ConfigError, match=r"null for .*proces .*no base defines; did you mean 'process'\?"):
        merged(base, from_overrides([f"{key}.proces=null"]).value)


def test_null_is_a_value_in_components_and_in_the_schema() -> None:
    base = {"stages": {"rl": {"module": {"target": "m:M", "prm": "x"}, "trainer": {"precision": "32"}}}}
    new = {"seed": None, "stages": {"rl": {"module": {"prm": None}, "trainer": {"precision": None}, "data": None}}}
    assert merged(base, new) == {
        "seed": None,
        "stages": {"rl": {"module": {"target": "m:M", "prm": None}, "trainer": {"precision": None}, "data": None}},
    }


def test_a_map_over_a_list_or_over_a_quoted_part_is_refused() -> None:
    base = {"parts": {"items": [1, 2], "quoted": "${parts.other}"}}
    with pytest.raises(ConfigError, match=r"parts.items \(.*\) is a list, which can only be replaced whole"):
        merged(base, from_overrides(["parts.items.0=3"]).value)
    with pytest.raises(ConfigError, match=r"parts.quoted .* is '\$\{parts.other\}': override parts.other instead"):
        merged(base, {"parts": {"quoted": {"steps": 1}}})
    assert merged(base, {"parts": {"quoted": {"target": "a:A"}}})["parts"]["quoted"] == {"target": "a:A"}


plain = st.recursive(
    st.integers() | st.text("xyz", max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from("abcd"), plain, max_size=4))
def test_merging_twice_changes_nothing(value: dict) -> None:
    assert merged(value, value) == merged(value) == value


BASE = """\
experiment: arms
output: {output}
stages:
  rl:
    module: {{target: "m:M", lr: 1, rewards: {{answer: {{weight: 1}}, steps: {{weight: 2}}}}}}
    data:
      target: "d:D"
      hops: [1, 2]
    callbacks:
      curve: {{target: "c:C", every: 4}}
      guard: {{target: "g:G"}}
    trainer: {{max_epochs: 4}}
"""
DIFFERENCE = """\
  arm:
    like: rl
    module: {lr: 2, rewards: {steps: null}}
    data: {hops: [3]}
    callbacks: {curve: {target: "n:N"}, guard: null}
"""
WRITTEN_OUT = """\
  arm:
    trainer: {max_epochs: 4}
    module: {target: "m:M", rewards: {answer: {weight: 1}}, lr: 2}
    data: {target: "d:D", hops: [3]}
    callbacks: {curve: {target: "n:N"}}
"""


def loaded(folder: Path, *documents: str, overrides: tuple[str, ...] = ()) -> Configuration:
    """Each document is based on the one before it."""
    for number, text in enumerate(documents):
        base = f"base: {number - 1}.yaml\n" if number else ""
        (folder / f"{number}.yaml").write_text(base + text)
    return load(folder / f"{len(documents) - 1}.yaml", overrides)


def base(folder: Path) -> str:
    return BASE.format(output=folder / "runs")


def test_a_stage_by_its_difference_is_the_stage_written_out(tmp_path: Path) -> None:
    short, long = (loaded(tmp_path, base(tmp_path) + arm) for arm in (DIFFERENCE, WRITTEN_OUT))
    assert short.experiment.stages["arm"] == long.experiment.stages["arm"]
    assert list(short.experiment.stages) == ["rl", "arm"]
    prints = [Plan.of(found).stages["arm"].fingerprint for found in (short, long)]
    assert prints[0] == prints[1]
    assert "like" not in str(short.written)


def test_a_stage_is_like_the_other_after_all_documents_and_overrides(tmp_path: Path) -> None:
    later = "stages:\n  arm: {module: {lr: 3}}\n  rl: {module: {clip: 5, rewards: {steps: null}}}\n"
    found = loaded(tmp_path, base(tmp_path) + DIFFERENCE, later, overrides=("stages.rl.trainer.max_epochs=9",))
    arm = found.experiment.stages["arm"]
    assert arm.module == {"target": "m:M", "lr": 3, "clip": 5, "rewards": {"answer": {"weight": 1}}}
    assert arm.trainer.max_epochs == 9


def test_chains_are_followed_whatever_the_order(tmp_path: Path) -> None:
    chain = "  last: {like: arm, module: {lr: 7}}\n" + DIFFERENCE
    last = loaded(tmp_path, base(tmp_path) + chain).experiment.stages["last"]
    assert last.module == {"target": "m:M", "lr": 7, "rewards": {"answer": {"weight": 1}}}
    assert (last.data, list(last.callbacks)) == ({"target": "d:D", "hops": [3]}, ["curve"])


def test_a_stage_that_is_removed_can_still_be_what_another_is_like(tmp_path: Path) -> None:
    found = loaded(tmp_path, base(tmp_path) + DIFFERENCE, "stages: {rl: null}\n").experiment
    assert list(found.stages) == ["arm"]
    assert found.stages["arm"].data == {"target": "d:D", "hops": [3]}


def test_like_can_be_taken_back_and_named_on_the_command_line(tmp_path: Path) -> None:
    text = base(tmp_path) + "  arm: {like: rl, data: {target: 'e:E'}}\n"
    assert loaded(tmp_path, text, overrides=("stages.arm.like=null",)).experiment.stages["arm"].module is None
    new = loaded(tmp_path, text, overrides=("stages.new.like=rl", "stages.new.module.lr=5")).experiment.stages["new"]
    assert new.module["lr"] == 5


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("arm: {like: rll}", r"^unknown stage 'rll' at stages.arm.like \(.*0.yaml:13\); did you mean 'rl'\?$"),
        ("arm: {like: [rl]}", r"^unknown stage '\['rl'\]' at stages.arm.like \(.*0.yaml:13\)"),
        ("arm: {like: arm}", r"^stages are like each other in a cycle: arm -> arm \(.*0.yaml:13\)$"),
        ("arm: {like: two}\n  two: {like: arm}", r"in a cycle: (arm -> two -> arm|two -> arm -> two) \(.*0.yaml:1[34]"),
        ("arm: {like: rl, callbacks: {gard: null}}", r"null for stages.arm.callbacks.gard .*did you mean 'guard'\?"),
        ("arm: {like: rl, data: {hops: {a: 1}}}", r"stages.arm.data.hops .*0.yaml:13\) is a list, which can only be"),
    ],
)
def test_a_wrong_like_is_one_line_that_points_at_it(tmp_path: Path, arm: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        loaded(tmp_path, base(tmp_path) + f"  {arm}\n")
    assert "\n" not in str(caught.value)


def test_a_message_about_an_inherited_key_points_at_the_line_where_it_was_written(tmp_path: Path) -> None:
    locations = loaded(tmp_path, base(tmp_path) + DIFFERENCE).locations
    lines = {
        key: locations.where(("stages", "arm", *key)).rpartition(":")[2]
        for key in [(), ("module",), ("module", "target"), ("data", "target"), ("data", "hops"), ("trainer",)]
    }
    assert lines == {
        (): "13",
        ("module",): "15",
        ("module", "target"): "5",
        ("data", "target"): "7",
        ("data", "hops"): "16",
        ("trainer",): "12",
    }
