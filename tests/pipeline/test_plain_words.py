"""Words without quotes: text stays what was written or is refused, and a number is the one that people read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from pipeline.components import build, check_stage
from pipeline.loader import load

FILE = """\
experiment: words
{extra}
stages:
  make:
    data:
      target: "tests.toys:Words"
      {line}
"""


def made(folder: Path, line: str, *overrides: str, extra: str = "") -> Any:
    path = folder / "x.yaml"
    path.write_text(FILE.format(line=line, extra=extra))
    configuration = load(path, overrides)
    stage = configuration.experiment.stages["make"]
    check_stage(stage, ("stages", "make"), configuration.locations, set())
    return build(stage.data, ("stages", "make", "data"), configuration.locations, {})


@pytest.mark.parametrize("text", ["0012345", "12:30", "2024-01-01", "1234567", "08", "0o17", "=", "nan", "'no'"])
@pytest.mark.parametrize("on_command_line", [False, True])
def test_text_is_what_was_written(tmp_path: Path, text: str, on_command_line: bool) -> None:
    line, overrides = ("", [f"stages.make.data.revision={text}"]) if on_command_line else (f"revision: {text}", [])
    assert made(tmp_path, line, *overrides).revision == text.strip("'")


@pytest.mark.parametrize(
    "text", ["no", "on", "true", "1_000", "1e5", "1.10", "1.5", "0x1F", "0b11", "+5", "1234567e8", ".inf"]
)
def test_what_is_read_as_something_else_has_to_be_quoted(tmp_path: Path, text: str) -> None:
    message = (
        rf"^stages\.make\.data\.revision \(PLACE\) must be text, and {text.replace('+', '.')} is read as .*quotes$"
    )
    with pytest.raises(ConfigError, match=message.replace("PLACE", r".*x\.yaml:7")):
        made(tmp_path, f"revision: {text}")
    with pytest.raises(ConfigError, match=message.replace("PLACE", "command line")):
        made(tmp_path, "", f"stages.make.data.revision={text}")
    assert made(tmp_path, f'revision: "{text}"').revision == text
    assert made(tmp_path, "", f'stages.make.data.revision="{text}"').revision == text


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("names: [a, no]", r"data\.names\[1\]"),
        ("titles: {a: 1.10}", r"data\.titles\.a"),
        ("mode: on", r"data\.mode"),
        ("corpus: no", r"data\.corpus"),
        ("entry: {name: off}", r"data\.entry\.name"),
        ("either: yes", r"data\.either"),
        ("revision:", r"data\.revision"),
        ("revision: ${parts.word}", r"data\.revision"),
        ("names: [a, '${parts.word}']", r"data\.names\[1\]"),
    ],
)
def test_text_anywhere_in_an_argument_is_checked(tmp_path: Path, line: str, at: str) -> None:
    extra = "parts: {word: 1.10}" if "parts" in line else ""
    with pytest.raises(ConfigError, match=rf"{at} \(.*x\.yaml:\d\) must be text"):
        made(tmp_path, line, extra=extra)


@pytest.mark.parametrize("text", ["no", "On", "{a: [1, off]}"])
def test_where_any_type_will_do_a_switch_has_to_be_true_or_false(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"data\.anything\S* \(.*:7\) is \w+, read as (True|False): write (true|false), or"
    ):
        made(tmp_path, f"anything: {text}")
    assert made(tmp_path, "anything: {a: [1.10, false, 'no', null]}").anything == {"a": [1.1, False, "no", None]}


def test_a_word_inside_a_text_is_as_it_was_written(tmp_path: Path) -> None:
    parts = "parts: {number: 1.10, word: no, digits: 0012}"
    assert made(tmp_path, "revision: v${parts.number}-${parts.word}-${parts.digits}", extra=parts).revision == (
        "v1.10-no-0012"
    )


def test_nothing_is_no_text_where_the_type_allows_it(tmp_path: Path) -> None:
    assert made(tmp_path, "maybe: null").maybe is None
    assert made(tmp_path, "either: 12").either == 12


@pytest.mark.parametrize(
    ("text", "number"), [("1_000", 1000), ("0x1F", 31), ("+5", 5), ('"12"', 12), ("0b11", 3), ("0", 0)]
)
def test_a_number_is_the_one_that_was_written(tmp_path: Path, text: str, number: int) -> None:
    assert made(tmp_path, f"count: {text}").count == number


@pytest.mark.parametrize("text", ["010", "0012345", "12:30", "no", "1e5", "0o17", "2024-01-01", "nan", ".nan", "1e999"])
def test_what_is_no_whole_number_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"x\.yaml:7"):
        made(tmp_path, f"count: {text}")


def test_infinity_is_a_number_and_a_switch_is_no_count(tmp_path: Path) -> None:
    assert made(tmp_path, "scale: .inf").scale == float("inf")
    assert made(tmp_path, "switch: no").switch is False
    with pytest.raises(ConfigError, match=r"data\.switch .* is 5: it must be true or false"):
        made(tmp_path, "switch: 5")
    with pytest.raises(ConfigError, match=r"data\.scale .* must be a number"):
        made(tmp_path, "scale: nan")


def test_keys_are_text_and_numbers_where_a_map_wants_them(tmp_path: Path) -> None:
    assert made(tmp_path, "titles: {1: a, 0012: b}").titles == {"1": "a", "0012": "b"}
    assert made(tmp_path, "weights: {1: 2}").weights == {1: 2.0}
    assert made(tmp_path, "weights: {1: 2}", "stages.make.data.weights.1=3").weights == {1: 3.0}


@pytest.mark.parametrize("name", ["experiment", "output", "accelerator", "data_root"])
def test_settings_of_the_experiment_are_text_too(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} \(command line\) must be text, and no is read as False"):
        made(tmp_path, "", f"{name}=no")
    with pytest.raises(ConfigError, match=r"^stages\.make\.trainer\.precision .* must be text"):
        made(tmp_path, "", "stages.make.trainer.precision=1.0")


def test_a_comment_on_the_command_line_drops_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has a comment"):
        made(tmp_path, "", "stages.make.data.revision=a #1")
    assert made(tmp_path, "", "stages.make.data.revision='#1'").revision == "#1"
