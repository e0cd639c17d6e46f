"""Base chains, the line of every key, overrides, and YAML as people mean it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ConfigError
from pipeline.documents import from_overrides, question_of, read, read_chain


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_exponents_are_numbers_and_dates_are_text(tmp_path: Path) -> None:
    value = read(write(tmp_path, "x.yaml", "a: 1e-5\nb: 2.5E+3\nc: 2026-11-21\nd: 1.e3\ne: 12\nf: e5\n")).value
    assert value == {"a": 1e-5, "b": 2500.0, "c": "2026-11-21", "d": 1000.0, "e": 12, "f": "e5"}


def test_the_question_of_a_file_is_asked_by_the_comment_at_its_head(tmp_path: Path) -> None:
    texts = {"# Does it help? At 8B.\na: 1\n": "Does it help?", "# Does it\n# help? No.\n": "Does it help?"}
    texts |= {"# It helps.\na: 1\n": "", "a: 1\n# Does it help?\n": "", "": ""}
    assert [question_of(write(tmp_path, "x.yaml", text)) for text in texts] == list(texts.values())


def test_an_anchor_that_holds_itself_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"x\.yaml:1: an anchor whose value holds itself"):
        read(write(tmp_path, "x.yaml", "a: &a\n  b: [*a]\n"))
    assert read(write(tmp_path, "y.yaml", "a: &a {b: 1}\nc: [*a, *a]\n")).value["c"] == [{"b": 1}] * 2


def test_every_key_and_list_element_has_its_line(tmp_path: Path) -> None:
    document = read(write(tmp_path, "x.yaml", "a:\n  b: 1\n  c:\n    - x\n    - y: 2\n"))
    lines = {key: mark.rpartition(":")[2] for key, mark in document.marks.items() if key}
    assert lines == {("a",): "1", ("a", "b"): "2", ("a", "c"): "3", ("a", "c", 0): "4", ("a", "c", 1): "5"} | {
        ("a", "c", 1, "y"): "5"
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", r"the key 'a' \(.*x.yaml:2\) is defined twice: first at .*x.yaml:1"),
        ("a: [1\n", r"x.yaml:2: "),
        ("- 1\n", r"must hold a map"),
        ("", r"must hold a map"),
        ("yes: 1\n", r"the key True \(.*x.yaml:1\) is not text"),
        ("a: \x00", r"is not YAML"),
        ("a: !!python/object:os.system x", r"x.yaml:1: could not determine a constructor"),
    ],
)
def test_wrong_yaml_is_one_line_that_points_at_it(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(write(tmp_path, "x.yaml", text))
    assert "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none.yaml: No such file"):
        read_chain(tmp_path / "none.yaml")


def test_bases_come_first_each_once_in_the_order_of_mention(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, "root.yaml", "name: root")
    write(tmp_path, "left.yaml", "base: root.yaml\nname: left")
    write(tmp_path, "right.yaml", "base: [root.yaml]\nname: right")
    top = write(tmp_path / "sub", "top.yaml", "base: [../left.yaml, ../right.yaml]\nname: top")
    assert [document.value["name"] for document in read_chain(top)] == ["root", "left", "right", "top"]


def test_a_cycle_of_bases_is_spelled_out(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "base: b.yaml")
    write(tmp_path, "b.yaml", "base: a.yaml")
    with pytest.raises(ConfigError, match=r"cycle: .*a.yaml -> .*b.yaml -> .*a.yaml"):
        read_chain(tmp_path / "a.yaml")


TRAINING = """\
base: world.yaml
parts: {policy: "${stage:sft}/model"}
stages:
  world: {data: {size: 2}}
  sft: {data: {path: ["${stage:world}", "${stage:sft}/x"]}}
  rl: {like: sft}
  eval_rl: {like: world, data: {path: "${stage:rl}"}}
names: {eval_rl: All stages, world: World}
"""


def test_a_base_under_a_prefix_has_other_names_for_its_own_stages(tmp_path: Path) -> None:
    write(tmp_path, "world.yaml", "stages: {world: {data: {size: 1}}}")
    write(tmp_path, "judged.yaml", "stages: {label: {data: {path: ['${stage:rl}', '${stage:world}']}}}")
    write(tmp_path, "training.yaml", TRAINING.replace("world.yaml", "[world.yaml, judged.yaml]"))
    x = write(tmp_path, "x.yaml", "base: [{file: training.yaml, prefix: a_}, world.yaml]\nstages: {rl: {like: a_rl}}")
    _, judged, training, own = read_chain(x)
    assert judged.value["stages"] == {"a_label": {"data": {"path": ["${stage:a_rl}", "${stage:world}"]}}}
    assert own.value["stages"] == {"rl": {"like": "a_rl"}}
    assert training.value == {
        "parts": {"policy": "${stage:a_sft}/model"},
        "stages": {
            "world": {"data": {"size": 2}},
            "a_sft": {"data": {"path": ["${stage:world}", "${stage:a_sft}/x"]}},
            "a_rl": {"like": "a_sft"},
            "eval_a_rl": {"like": "world", "data": {"path": "${stage:a_rl}"}},
        },
        "names": {"eval_a_rl": "All stages", "world": "World"},
    }
    assert training.marks[("names", "eval_a_rl")].endswith("training.yaml:8")
    assert training.marks[("stages", "a_rl", "like")].endswith("training.yaml:6")


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("5", r"must be a file or {file: FILE, prefix: NAME_}, not 5$"),
        ("{file: training.yaml}", "must be a file or {file: FILE, prefix: NAME_}, not {'file': 'training.yaml'}$"),
        ("[{file: training.yaml, prefix: 3}]", r"a base \(.*x.yaml:1\) must be a file or"),
        ("[{file: training.yaml, prefix: a/}]", r"a base \(.*x.yaml:1\) must be a file or"),
        ("[{file: none.yaml, prefix: a_}]", r"no base file 'none.yaml' \(.*x.yaml:1\)"),
        (
            "\n  - training.yaml\n  - {file: training.yaml, prefix: a_}",
            r"^.*training.yaml is a base under two prefixes, '' and 'a_' \(.*x.yaml:3\)$",
        ),
    ],
)
def test_a_wrong_base_is_one_line(tmp_path: Path, base: str, message: str) -> None:
    write(tmp_path, "world.yaml", "a: 1")
    write(tmp_path, "training.yaml", TRAINING)
    with pytest.raises(ConfigError, match=message) as caught:
        read_chain(write(tmp_path, "x.yaml", f"base: {base}\nname: x"))
    assert "\n" not in str(caught.value)


def test_a_missing_base_names_file_line_and_where_it_was_sought(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "x: 1\nbase: [none.yaml]")
    with pytest.raises(ConfigError, match=r"no base file 'none.yaml' \(.*a.yaml:2\): looked in .* and .*configs"):
        read_chain(path)


def test_overrides_are_one_document_of_yaml_values() -> None:
    document = from_overrides(["a.b=1e-3", "a.c=[1, x]", "d=", "e=x=y", "a.target=m:N"])
    assert document.value == {"a": {"b": 0.001, "c": [1, "x"], "target": "m:N"}, "d": None, "e": "x=y"}
    assert document.marks[("a", "b")] == "command line"


@pytest.mark.parametrize("override", ["a", "=1", "a..b=1", "--x"])
def test_what_is_not_an_override_is_an_error(override: str) -> None:
    with pytest.raises(ConfigError, match="is not an override"):
        from_overrides([override])


def test_contradicting_overrides_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'a.b=2' contradicts another override of a"):
        from_overrides(["a=1", "a.b=2"])


@given(st.text(max_size=40))
def test_any_text_is_settings_or_a_one_line_error(text: str) -> None:
    try:
        found = list(from_overrides([f"key={text}"]).value)
    except ConfigError as error:
        found = str(error).splitlines()
    assert len(found) == 1


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: " + "[" * 900 + "]" * 900, r"x\.yaml:1: settings deeper than 60 levels$"),
        ("\n".join(" " * depth + "a:" for depth in range(900)), r"x\.yaml:60: settings deeper than 60 levels$"),
        (BOMB, r"x\.yaml:\d: settings of more than 20,000 values or 60 levels, with aliases$"),
        ("a: [" + "1, " * 30_000 + "1]", r"x\.yaml:1: settings of more than 20,000 values$"),
        ("a: " + "x" * 1_000_001, r"x\.yaml is too large for settings"),
        ("a: 1" + "0" * 5_000, r"x\.yaml:1: 1000"),
        ("a: !!int x", r"x\.yaml:1: x is not a value of its kind"),
        ("a: !!binary aGk=", r"x\.yaml:1: could not determine a constructor"),
        ("a: !thing {b: 1}", r"x\.yaml:1: could not determine a constructor"),
        ("a: {<<: {b: 1}}", r"x\.yaml:1: the merge key << is not read: use base, parts or like$"),
        ("? [a]\n: 1\n", r"x\.yaml:1: a key must be a name"),
        ('a: "\\uD800"', r"x\.yaml:1: a text holds a zero byte or a character that is not Unicode"),
        ('"\\0": 1', r"x\.yaml:1: a text holds a zero byte"),
        ("1.10: a", r"the key 1.1 \(.*x\.yaml:1\) is not text: put 1.10 in quotes"),
        ("1_0: a", r"the key 10 \(.*x\.yaml:1\) is not text: put 1_0 in quotes"),
        ("\ta: 1", r"x\.yaml:1: found character '\\t'"),
    ],
)
def test_what_is_too_much_or_strange_is_one_line_at_once(tmp_path: Path, text: str, message: str) -> None:
    path, start = write(tmp_path, "x.yaml", text), time.process_time()
    with pytest.raises(ConfigError, match=message) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert time.process_time() - start < 5, "a second or so, on any machine"


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes("\ufeff# Why?\r\na: b\r\nc: [1,\r\n 2]\r\n".encode())
    assert read(path).value == {"a": "b", "c": [1, 2]}
    assert question_of(path) == "Why?"


def test_a_file_that_is_none_is_named_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text.yaml").write_bytes(b"a: \xff\n")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "nowhere.yaml")
    said = {"pipe": "not a regular file", ".": "a folder", "text.yaml": "not UTF-8", "link.yaml": "No such file"}
    for name, reason in said.items():
        with pytest.raises(ConfigError, match=reason):
            read_chain(tmp_path / name)
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    odd = {"/dev/null": "/dev/null: it is not a regular", "a\0b": "null byte", "x" * 5000: "name too long"}
    for name, reason in (odd | {str(tmp_path / "loop.yaml"): "loop"}).items():
        with pytest.raises(ConfigError, match=rf"(?i)cannot read .*{reason}"):
            read_chain(Path(name))


def test_bases_that_double_are_read_once_and_a_long_chain_is_refused(tmp_path: Path) -> None:
    for level in range(40):
        for side in "ab":
            bases = f"base: [a{level + 1}.yaml, b{level + 1}.yaml]\n" if level < 39 else ""
            write(tmp_path, f"{side}{level}.yaml", f"{bases}name: {side}{level}")
    assert len(read_chain(tmp_path / "a0.yaml")) == 79
    for level in range(60):
        write(tmp_path, f"c{level}.yaml", f"base: c{level + 1}.yaml" if level < 59 else "name: c")
    with pytest.raises(ConfigError, match=r"c50\.yaml is the base of a base more than 50 times over"):
        read_chain(tmp_path / "c0.yaml")


def test_an_override_of_what_another_sets_parts_of_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'a=2' contradicts another override inside a$"):
        from_overrides(["a.b=1", "a=2"])


def test_paths_are_those_beside_the_file_where_there_are_any_else_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, base = tmp_path / "own", tmp_path / "base"
    for folder in (own, base):
        folder.mkdir()
        write(folder, "q.csv", "")
    write(tmp_path, "elsewhere.csv", "")
    write(base, "b.yaml", "parts: {b: ./q.csv, target: q.csv, name: q}\n")
    text = "base: ../base/b.yaml\ndata_root: .\nparts: {a: [q.csv, ./elsewhere.csv, none.csv], cache: q.csv}\n"
    text += "output: ./q.csv\n"
    write(own, "x.yaml", text)
    monkeypatch.chdir(tmp_path)
    first, second = (document.value for document in read_chain(Path("own/x.yaml")))
    assert first == {"parts": {"b": "base/q.csv", "target": "q.csv", "name": "q"}}
    assert second == {
        "data_root": ".",
        "parts": {"a": ["own/q.csv", "./elsewhere.csv", "none.csv"], "cache": "q.csv"},
        "output": "./q.csv",
    }
    monkeypatch.chdir(own)
    assert read_chain(Path("x.yaml"))[1].value["parts"]["a"][0] == "q.csv"
