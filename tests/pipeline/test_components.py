"""Components: checked against their signatures before anything is called, then built innermost first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from pipeline.components import build, check, check_stage
from pipeline.locations import Locations
from pipeline.schema import Stage, TrainerSettings
from pipeline.skeletons import read_or_imported, reading
from tests.toys import Holder, Limits, Open, Piece

AT = ("stages", "rl", "module")
PIECE = {"target": "tests.toys:Piece", "name": "a"}


def locations(value: object) -> Locations:
    return Locations.of({"stages": {"rl": {"module": value}}}, {AT: "x.yaml:14"})


def made(value: Any) -> Any:
    with reading():  # no import is needed to find it right
        check(value, AT, locations(value), set(), whole=True)
    check(value, AT, locations(value), set(), whole=True)
    return build(value, AT, locations(value), {})


def refused(value: Any, message: str) -> None:
    def checked() -> None:
        check(value, AT, locations(value), set(), whole=True)

    for call in (checked, lambda: read_or_imported(checked)):
        with pytest.raises(ConfigError, match=message) as caught:
            call()
        assert "x.yaml:14" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_missing_input_was_looked_for_in_both_folders() -> None:
    elsewhere = Locations.of({}, {AT: "/own/x.yaml:14"})
    with pytest.raises(ConfigError, match=rf"no file or folder 'no/where' at .*: looked in /own and {Path.cwd()}$"):
        check(holder(corpus="no/where"), AT, elsewhere, set(), whole=True)


def holder(**arguments: Any) -> dict[str, Any]:
    return {"target": "tests.toys:Holder", "piece": PIECE, **arguments}


def weighing(**settings: Any) -> dict[str, Any]:
    return {"target": "tests.toys:Weighing", "pieces": {"one": {"piece": PIECE, **settings}}}


def test_values_arrive_in_the_types_of_the_signature(tmp_path: Path) -> None:
    held = made(holder(count="3", corpus=str(tmp_path), limits={"steps": 5}, pair=[1, 2], mode="slow"))
    assert isinstance(held, Holder)
    assert (held.count, held.corpus, held.limits, held.pair, held.mode) == (3, tmp_path, Limits(5, 8), (1, 2), "slow")
    assert isinstance(made(PIECE | {"scale": 2}).scale, float)


def test_an_argument_may_be_one_path_or_a_list_of_them(tmp_path: Path) -> None:
    data = {"target": "datamodules.episode_data:EpisodeData"}
    assert made(data | {"path": str(tmp_path)}).paths == [tmp_path / "data" / "episodes.jsonl"]
    several = made(data | {"path": [str(tmp_path), "${stage:drills}"]})
    assert several.paths == [Path(folder) / "data" / "episodes.jsonl" for folder in (tmp_path, "${stage:drills}")]
    refused(data | {"path": [str(tmp_path / "missing")]}, r"no file or folder '.*missing' at stages")
    refused(data | {"path": {"a": 1}}, "path")


def test_nested_components_are_built_in_maps_and_lists_innermost_first() -> None:
    inner = PIECE | {"other": [PIECE | {"name": "deep"}]}
    held = made(holder(piece=inner, rewards={"f1": {"weight": 0.5, "reward": PIECE | {"name": "r"}}}))
    assert isinstance(held.piece, Piece)
    assert held.piece.other[0].name == "deep"
    assert (held.rewards["f1"]["weight"], held.rewards["f1"]["reward"].name) == (0.5, "r")


def test_equal_components_are_one_object_within_a_build() -> None:
    reordered = {"name": "a", "target": "tests.toys:Piece"}
    held = made(holder(more=[PIECE, reordered, PIECE | {"name": "b"}]))
    assert held.piece is held.more[0] is held.more[1]
    assert held.more[2] is not held.piece


def test_a_function_that_lacks_arguments_is_bound_and_one_that_lacks_none_is_called() -> None:
    bound = {"target": "tests.toys:reward", "weight": 2.0}
    assert made(holder(hook=bound)).hook([1, 2], 10) == [22.0, 24.0]
    assert made(holder(hook=bound | {"episodes": [1], "context": 1})).hook == [4.0]


def test_a_stage_piece_may_not_lack_anything() -> None:
    refused({"target": "tests.toys:reward"}, r"missing 'episodes' at stages.rl.module")


def test_an_argument_of_any_type_takes_plain_values() -> None:
    assert made({"target": "tests.toys:Piece", "name": "a", "other": 3}).other == 3


def test_open_keywords_take_any_name_but_named_ones_stay_checked() -> None:
    assert made({"target": "tests.toys:Open", "extra": 1, "first": 2}).rest == {"extra": 1}
    refused({"target": "tests.toys:Open", "first": "x"}, r"'x' of type 'str' .* Integer at stages.rl.module.first")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (holder(cuont=1), r"^unknown key 'cuont' at stages.rl.module \(x.yaml:14\); did you mean 'count'\?$"),
        (holder(count="x"), r"value 'x' of type 'str' could not be converted to Integer at stages.rl.module.count"),
        (holder(pair=[1, "x"]), r"^\[1, 'x'\] does not fit tuple\[int, ...\] at stages.rl.module.pair \(x.yaml:14\)$"),
        (holder(mode="medium"), r"invalid value 'medium', expected one of \['fast', 'slow'\] at .*mode"),
        (holder(limits={"step": 1}), r"unknown key 'step' at stages.rl.module.limits .*; did you mean 'steps'\?"),
        (
            holder(corpus="no/where"),
            rf"no file or folder 'no/where' at stages.rl.module.corpus .*: looked in {Path.cwd()}$",
        ),
        (
            holder(piece="a"),
            r"^stages.rl.module.piece \(x.yaml:14\) must be a component, such as {target: .*}, not 'a'$",
        ),
        (holder(piece=[1]), r"module.piece .* must be a component, .* not \[1\]"),
        (holder(piece={"name": "a"}), r"module.piece .* must be a component, .* not {'name': 'a'}"),
        (holder(hook=3), r"module.hook .* must be a component, .* not 3"),
        ({"target": "tests.toys:Reader", "codec": 42}, r"module.codec .* must be a component, .* not 42"),
        (
            holder(piece={"target": "tests.toys:Open"}),
            r"module.piece .* must be a Piece, which tests.toys:Open is not$",
        ),
        (
            holder(hook={"target": "tests.toys:Open"}),
            r"module.hook .* must be a Callable, which tests.toys:Open is not",
        ),
        (
            {"target": "tests.toys:Reader", "codec": PIECE},
            r"module.codec .* must be a Codec, which tests.toys:Piece is",
        ),
        (weighing(weigth=2.0), r"^unknown key 'weigth' at .*module.pieces.one \(x.yaml:14\); did you mean 'weight'\?"),
        (weighing(weight="high"), r"'high' of type 'str' .* Float at stages.rl.module.pieces.one.weight"),
        (weighing(piece={"target": "tests.toys:Open"}), r"module.pieces.one.piece .* must be a Piece"),
        ({"target": "tests.toys:Holder"}, r"missing 'piece' at stages.rl.module .*, which tests.toys:Holder requires"),
        (holder(more=[PIECE | {"nam": 1}]), r"unknown key 'nam' at stages.rl.module.more\[0\]"),
        ({"target": "tests.toy:Holder"}, r"no module 'tests.toy' at .*target .*; did you mean 'tests.toys'\?"),
        ({"target": "nowhere.toy:Holder"}, r"no module 'nowhere.toy'"),
        ({"target": "tests.toys:Holdr"}, r"no 'Holdr' in tests.toys at .*; did you mean 'Holder'\?"),
        ({"target": "tests.toys.Holder"}, r"must read \"package.module:name\", not 'tests.toys.Holder'"),
        ({"target": "tests.toys:annotations"}, r"is not a class or function"),
        ({"targte": "tests.toys:Holder"}, r"no 'target' at stages.rl.module"),
        ("tests.toys:Holder", r"no 'target' at stages.rl.module"),
    ],
)
def test_wrong_components_are_refused_before_anything_is_called(value: Any, message: str) -> None:
    refused(value, message)


def test_plain_values_pass_where_a_signature_takes_them_too() -> None:
    assert made(holder(hook=None, corpus=None)).hook is None
    assert made({"target": "tests.toys:Reader", "piece": "path", "wanted": [1]}).piece == "path"
    assert made({"target": "tests.toys:Reader", "limits": {"steps": 5}}).limits == {"steps": 5}


def test_a_component_passes_where_its_kind_fits_or_cannot_be_told() -> None:
    assert made(weighing(weight=2)).pieces["one"]["weight"] == 2
    assert made(holder(hook={"target": "tests.toys:reward"})).hook([1], 1) == [2.0]
    assert isinstance(made(holder(more=[{"target": "tests.toys:Open"}])).more[0], Open)
    assert isinstance(made({"target": "tests.toys:Reader", "limits": PIECE}).limits, Piece)


def test_a_path_inside_another_stage_need_not_exist_yet() -> None:
    check(holder(corpus="${stage:world}/data/corpus.jsonl"), AT, locations({}), set(), whole=True)


def test_an_input_is_written_as_a_path(tmp_path: Path, monkeypatch) -> None:
    """Its fingerprint is read without importing the target, so the text itself must say that it is one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test").mkdir()
    refused(holder(corpus="test"), r"'test' at stages.rl.module.corpus \(x.yaml:14\) must be written as a path: ./test")
    assert made(holder(corpus="./test")).corpus == Path("test")


def test_a_constructors_own_refusal_gets_the_line() -> None:
    with pytest.raises(ConfigError, match=r"scale must not be negative \[stages.rl.module \(x.yaml:14\)\]"):
        made(PIECE | {"scale": -1})


def test_a_module_with_a_missing_dependency_says_so(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "needy.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    refused({"target": "needy:Thing"}, r"cannot be imported: No module named 'not_installed_anywhere'")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ValueError('no\\nluck')", "ValueError: no luck"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def (:", "SyntaxError: invalid syntax"),
    ],
)
def test_a_module_that_fails_on_import_is_named(tmp_path: Path, monkeypatch, code: str, reason: str) -> None:
    (tmp_path / "failing.py").write_text(code + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    refused({"target": "failing:Thing"}, rf"target .* cannot be imported: {reason}")
    sys.modules.pop("failing", None)


def test_a_target_is_whole_and_takes_its_arguments_by_name() -> None:
    refused({"target": "..toys:Holder"}, r"must read \"package.module:name\"")
    refused({"target": "tests.toys:unnamed"}, r"cannot be built: 'first' of tests.toys:unnamed is positional-only")


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (Stage(data=PIECE), r"stages.rl.data .* has no make\(\): without a module, data must make records"),
        (
            Stage(data={"target": "tests.toys:Numbers", "count": 1}, callbacks={"a": PIECE}),
            r"stages.rl .* has callbacks or trainer settings but no module to fit",
        ),
        (
            Stage(data={"target": "tests.toys:Numbers", "count": 1}, trainer=TrainerSettings(max_epochs=1)),
            r"has callbacks or trainer settings but no module to fit",
        ),
        (Stage(data=PIECE, module=PIECE, callbacks={"a": None}), r"no 'target' at stages.rl.callbacks.a"),
    ],
)
def test_a_stage_that_cannot_run_is_refused(stage: Stage, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_stage(stage, ("stages", "rl"), locations({}), set())
