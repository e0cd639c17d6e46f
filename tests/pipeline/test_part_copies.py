"""Maps that are like a part, its settings under their own; wrong ones are named with their line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.errors import ConfigError
from pipeline.loader import Configuration, load

TEXT = """\
experiment: arms
output: runs
parts:
  sampling: {like: fast}
  fast: {rows: 128, sampler: {target: "f:F", engine: {target: "e:E", rows: "${parts.fast.rows}"}}}
  exact: {rows: 32, sampler: {target: "x:X", kept: 20}}
  linked: ${parts.fast.sampler}
stages:
  one:
    data: {target: d, pool: "${parts.sampling.rows}", sampler: {like: sampling.sampler, temperature: 0.9, policy: a}}
  two: {like: one, data: {sampler: {policy: b}}}
"""
ENGINE = {"target": "e:E", "rows": 128}
FAST = {"target": "f:F", "engine": ENGINE, "policy": "a", "temperature": 0.9}
EXACT = {"target": "x:X", "kept": 20, "policy": "a", "temperature": 0.9}


def loaded(folder: Path, *overrides: str, text: str = TEXT, more: str = "") -> Configuration:
    (folder / "base.yaml").write_text(text)  # which may have parts that nothing uses
    (folder / "arms.yaml").write_text("base: base.yaml\n" + more)
    return load(folder / "arms.yaml", overrides)


@pytest.mark.parametrize(
    ("overrides", "sampler", "pool"),
    [
        ((), FAST, 128),
        (("parts.sampling.like=exact",), EXACT, 32),
        (("stages.one.data.sampler.like=exact.sampler",), EXACT, 128),
        (("stages.one.data.sampler.like=linked",), FAST, 128),
        (("parts.fast.rows=64",), FAST | {"engine": ENGINE | {"rows": 64}}, 64),
        (("parts.sampling.sampler.engine.rows=8",), FAST | {"engine": ENGINE | {"rows": 8}}, 128),
        (("stages.one.data.sampler.top_p=null",), FAST | {"top_p": None}, 128),
        (("stages.one.data.sampler={target: 'n:N'}",), {"target": "n:N"}, 128),
        (("stages.one.data.sampler.like=null", "stages.one.data.sampler.target='n:N'"), {"target": "n:N"}, 128),
    ],
)
def test_a_map_is_the_part_with_its_own_settings(
    tmp_path: Path, overrides: tuple[str, ...], sampler: dict[str, Any], pool: int
) -> None:
    stages = loaded(tmp_path, *overrides).experiment.stages
    assert stages["one"].data == {"target": "d", "pool": pool, "sampler": sampler}
    assert stages["two"].data["sampler"] == sampler | {"policy": "b"}


@pytest.mark.parametrize("old", ["{target: 'o:O', old: 1}", "${parts.linked}"])
def test_another_like_takes_the_place_of_a_target_and_of_a_reference(tmp_path: Path, old: str) -> None:
    text = TEXT.replace("{like: sampling.sampler, temperature: 0.9, policy: a}", f'"{old}"' if old[0] == "$" else old)
    more = "stages: {one: {data: {sampler: {like: exact.sampler, temperature: 1}}}}\n"
    sampler = loaded(tmp_path, text=text, more=more).experiment.stages["one"].data["sampler"]
    assert sampler == {"target": "x:X", "kept": 20, "temperature": 1}


def test_a_setting_has_the_line_where_it_is_written(tmp_path: Path) -> None:
    locations = loaded(tmp_path).locations
    lines = {("policy",): "11", ("temperature",): "10", ("target",): "5", ("engine", "target"): "5"}
    assert lines == {
        name: locations.where(("stages", "two", "data", "sampler", *name)).rpartition(":")[2] for name in lines
    }


def test_a_part_has_a_use_where_a_map_is_like_it_in_the_file_or_by_the_command_line(tmp_path: Path) -> None:
    assert loaded(tmp_path, more="parts: {fast: {rows: 64}}\n").experiment.stages["one"].data["pool"] == 64
    with pytest.raises(ConfigError, match=r"nothing uses parts\.exact \(.*arms\.yaml:2\)"):
        loaded(tmp_path, more="parts: {exact: {rows: 64}}\n")
    fast = "parts: {fast: {rows: 64}}\n"
    assert loaded(tmp_path, "parts.sampling.like=exact", more=fast).experiment.stages["one"].data["pool"] == 32
    with pytest.raises(ConfigError, match=r"nothing uses parts\.fast \(command line\)"):
        loaded(tmp_path, "parts.sampling.like=exact", "parts.fast.rows=8", more=fast)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("parts.sampling.like=fas", r"unknown part 'fas' at .*like \(command line\); did you mean 'fast'\?"),
        ("parts.sampling.like=fast.rows", r"parts.sampling.like \(command line\) must .* parts.fast.rows is none"),
        ("parts.fast.like=sampling", r"in a cycle: (fast -> sampling -> fast|sampling -> fast -> sampling), at "),
        ("stages.one.data.sampler.like=linked", r"in a cycle: linked -> linked, at stages\.one\."),
    ],
)
def test_a_wrong_like_is_one_line(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, override, text=TEXT.replace("  linked: ${parts.fast.sampler}", "  linked: ${parts.linked}"))


def test_parts_that_double_without_end_are_refused(tmp_path: Path) -> None:
    doubled = "".join(f"  p{n}: {{a: {{like: p{n + 1}}}, b: {{like: p{n + 1}}}}}\n" for n in range(30))
    with pytest.raises(ConfigError, match=r"more than 2,000 maps are like a part, .*base\.yaml:\d+\)"):
        loaded(tmp_path, text=TEXT.replace("  sampling:", f"{doubled}  p30: {{x: 1}}\n  sampling:"))
