"""From files and overrides to an experiment; every message points at its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError
from pipeline.loader import load

QUOTED = "'${{parts.a{}}}'"
BASIC = """\
experiment: basic
stages:
  make: {data: {target: "a:A", path: x}}
"""


def write(folder: Path, text: str, name: str = "x.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def fails(path: Path, message: str, *overrides: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(path, overrides)
    assert "\n" not in str(caught.value)


def test_defaults_and_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, BASIC)
    plain = load(path).experiment
    assert (plain.seed, plain.output, plain.devices, plain.stages["make"].kind) == (0, "runs", 1, "make")
    changed = load(path, ["seed=3", "stages.make.data.path=y", "stages.make.trainer.max_epochs=2"]).experiment
    assert (changed.seed, changed.stages["make"].data["path"]) == (3, "y")
    assert changed.stages["make"].trainer.max_epochs == 2


def test_parts_are_quoted_whole_and_stage_references_survive(tmp_path: Path) -> None:
    text = BASIC + '  fit: {data: "${parts.data}", module: {target: "m:M", seed: "${seed}", x: "${stage:make}/data"}}\n'
    text += 'parts:\n  data: {target: "d:D", codec: "${parts.codec}"}\n  codec: {target: "c:C", size: 3}\n'
    stage = load(write(tmp_path, text), ["parts.codec.size=4", "seed=7"]).experiment.stages["fit"]
    assert stage.data == {"target": "d:D", "codec": {"target": "c:C", "size": 4}}
    assert stage.module == {"target": "m:M", "seed": 7, "x": "${stage:make}/data"}


def test_data_root_comes_from_the_file_else_from_the_environment(tmp_path: Path, monkeypatch) -> None:
    path = write(tmp_path, BASIC.replace("path: x", 'path: "${data_root}/musique"'))
    monkeypatch.delenv("RAG_DATA", raising=False)
    fails(path, r"stages.make.data.path \(.*x.yaml:3\) needs data_root: set the environment variable RAG_DATA")
    monkeypatch.setenv("RAG_DATA", "/environment")
    assert load(path).experiment.stages["make"].data["path"] == "/environment/musique"
    assert load(path, ["data_root=/given"]).experiment.stages["make"].data["path"] == "/given/musique"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sead=1", r"^unknown key 'sead' \(command line\); did you mean 'seed'\?$"),
        ("stages.make.dat.x=1", r"^unknown key 'dat' at stages.make \(command line\); did you mean 'data'\?$"),
        ("stages.make.trainer.max_epoch=1", r"unknown key 'max_epoch' at stages.make.trainer .*'max_epochs'"),
        ("seed=many", r"'many' of type 'str' could not be converted to Integer at seed \(command line\)"),
        ("stages.make.trainer.gradient_clip_algorithm=l2", r"expected one of \['norm', 'value'\]"),
        ("stages.mak.callbacks={}", r"^unknown stage 'mak' \(command line\); did you mean 'make'\?$"),
        ("stages.mak.data.path=y", r"^unknown stage 'mak' \(command line\); did you mean 'make'\?$"),
        ("stages.make.data.path=${parts.x}", r"'parts.x' not found at stages.make.data.path \(command line\)"),
        ("stages.make.data.path=${", r"at stages.make.data.path \(command line\)"),
        ("devices=0", r"^devices \(command line\) is 0: it must be at least 1$"),
        ("devices=-1", r"^devices \(command line\) is -1: it must be at least 1$"),
        ("num_nodes=0", r"^num_nodes \(command line\) is 0: it must be at least 1$"),
        ("seed=-1", r"^seed \(command line\) is -1: it must be at least 0$"),
        ("experiment=a/b", r"'a/b' at experiment \(command line\) is not a valid name"),
        ("stages={}", r"."),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, override: str, message: str) -> None:
    path = write(tmp_path, BASIC)
    if override == "stages={}":
        override, path = "seed=1", write(tmp_path, "experiment: x\nstages: {}\n")
        message = "no stages in .*x.yaml"
    fails(path, message, override)


def test_a_stage_laid_over_others_is_new_only_with_something_to_run(tmp_path: Path) -> None:
    write(tmp_path, BASIC, "base.yaml")
    over = "base: base.yaml\nstages:\n  mak: {data: DATA}\n"
    fails(write(tmp_path, over.replace("DATA", "{path: y}")), r"unknown stage 'mak' \(.*x.yaml:3\); .* 'make'\?$")
    new = load(write(tmp_path, over.replace("DATA", '{target: "b:B"}'))).experiment
    assert list(new.stages) == ["make", "mak"]
    fails(write(tmp_path, BASIC.replace("data: {", "trainer: {")), r"unknown key 'target' at stages.make.trainer")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("experiment: x\n", r"^no stages in .*x\.yaml$"),
        ("experiment: x\nstages: [1]\n", r"^stages \(.*x\.yaml:2\) must be a map, not \[1\]$"),
        ("experiment: x\nstages:\n  make: 5\n", r"^stages\.make \(.*x\.yaml:3\) must be a map, not 5$"),
        (BASIC + "parts: 1\n", r"^parts \(.*x\.yaml:4\) must be a map, not 1$"),
    ],
)
def test_what_must_be_a_map_is_named(tmp_path: Path, text: str, message: str) -> None:
    fails(write(tmp_path, text), message)


def test_a_missing_experiment_name_is_named(tmp_path: Path) -> None:
    fails(write(tmp_path, BASIC.replace("experiment: basic", "seed: 1")), r"missing 'experiment'")


def test_the_line_is_that_of_the_file_that_said_it_last(tmp_path: Path) -> None:
    write(tmp_path, BASIC, "base.yaml")
    path = write(tmp_path, "base: base.yaml\n\nstages:\n  make:\n    modul: 1\n")
    fails(path, r"unknown key 'modul' at stages.make \(.*x.yaml:5\)")


def test_a_message_about_a_quoted_part_points_into_the_part(tmp_path: Path) -> None:
    text = BASIC.replace("path: x", 'path: "${parts.a}"') + "parts:\n  a:\n    b: 1\n"
    locations = load(write(tmp_path, text)).locations
    assert locations.where(("stages", "make", "data", "path", "b")).endswith("x.yaml:6")
    assert locations.where(("stages", "make", "data", "target")).endswith("x.yaml:3")


def test_a_part_that_nothing_quotes_is_a_misspelling_unless_a_base_brought_it(tmp_path: Path) -> None:
    quoting = BASIC.replace("path: x", 'path: "${parts.codec}"') + "parts: {codec: 1, spare: 2}\n"
    fails(write(tmp_path, quoting), r"nothing uses parts.spare \(.*x.yaml:4\)")
    write(tmp_path, quoting, "base.yaml")
    path = write(tmp_path, "base: base.yaml")
    assert load(path).experiment.stages["make"].data["path"] == 1
    fails(path, r"nothing uses parts.codek \(command line\); did you mean 'codec'\?", "parts.codek=3")


def test_a_circle_of_parts_is_an_error(tmp_path: Path) -> None:
    text = BASIC.replace("path: x", 'path: "${parts.a}"') + 'parts: {a: "${parts.b}", b: "${parts.a}"}\n'
    fails(write(tmp_path, text), r"at stages.make.data.path")


def test_references_that_expand_without_end_are_refused(tmp_path: Path) -> None:
    lists = "".join(f"  a{n}: [{', '.join([QUOTED.format(n + 1)] * 10)}]\n" for n in range(8)) + "  a8: x\n"
    fails(write(tmp_path, BASIC.replace("path: x", 'path: "${parts.a0}"') + "parts:\n" + lists), "expands to more than")
    texts = "".join(f'  a{n}: "${{parts.a{n + 1}}}${{parts.a{n + 1}}}"\n' for n in range(40)) + "  a40: x\n"
    fails(write(tmp_path, BASIC.replace("path: x", 'path: "${parts.a0}"') + "parts:\n" + texts), "expands to more than")


def test_a_relative_reference_has_the_line_of_what_it_means(tmp_path: Path) -> None:
    text = BASIC.replace("path: x}", 'path: "${.other}", other: 5}')
    assert load(write(tmp_path, text)).locations.written(("stages", "make", "data", "path")) == "5"


def test_a_part_of_a_map_is_picked_by_a_list_of_names(tmp_path: Path) -> None:
    text = 'experiment: some\nstages: {make: {data: {target: "a:A", sets: "${pick:${parts.test},${parts.sets}}"}}}\n'
    text += 'parts: {size: 5, sets: [b, a], test: {a: {target: "s:S", n: "${parts.size}"}, b: 2, c: "${parts.none}"}}\n'
    path = write(tmp_path, text)
    assert load(path).experiment.stages["make"].data["sets"] == {"b": 2, "a": {"target": "s:S", "n": 5}}
    assert load(path, ["parts.sets=[b]"]).experiment.stages["make"].data["sets"] == {"b": 2}
    message = r"there is no 'd' in parts.test to pick at stages.make.data.sets \(.*x.yaml:2\); accepted: a, b, c"
    fails(path, message, "parts.sets=[d]")
    fails(path, "must pick from a map what a list names: parts.test, parts.sets", "parts.sets=b")
