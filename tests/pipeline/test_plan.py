"""The order of stages, what is chosen, what is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.errors import ConfigError
from pipeline.loader import load
from pipeline.plan import Plan
from tests.toy_runs import made

MANIFEST = {"source": "abc", "inputs": {}, "versions": {}, "metrics": {}}
CHAIN = """\
experiment: chain
output: {output}
stages:
  report: {{data: {{target: "tests.toys:Numbers", count: 1, source: "${{stage:fit}}"}}}}
  world: {{data: {{target: "tests.toys:Numbers", count: 1}}}}
  fit: {{data: {{target: "tests.toys:Numbers", count: 2, source: "${{stage:world}}/data"}}}}
  other: {{data: {{target: "tests.toys:Numbers", count: 3}}}}
"""


def plan(folder: Path, *overrides: str, **options: list[str]) -> Plan:
    path = folder / "x.yaml"
    path.write_text(CHAIN.format(output=folder / "runs"))
    return Plan.of(load(path, overrides), **options)


def test_stages_come_after_what_they_need(tmp_path: Path) -> None:
    found = plan(tmp_path)
    order = list(found.chosen)
    assert sorted(order) == ["fit", "other", "report", "world"]
    assert order.index("world") < order.index("fit") < order.index("report")
    assert found.stages["report"].needs == ("fit",)


def test_a_chosen_stage_brings_what_it_needs(tmp_path: Path) -> None:
    assert plan(tmp_path, only=["fit"]).chosen == ("world", "fit")
    assert plan(tmp_path, only=["other", "world"]).chosen in (("world", "other"), ("other", "world"))


def test_a_change_reaches_dependents_and_nobody_else(tmp_path: Path) -> None:
    before = plan(tmp_path).stages
    after = plan(tmp_path, "stages.world.data.count=5").stages
    changed = {name for name in before if before[name].fingerprint != after[name].fingerprint}
    assert changed == {"world", "fit", "report"}


def test_only_a_manifest_makes_a_stage_done_and_force_undoes_it(tmp_path: Path) -> None:
    world = plan(tmp_path).stages["world"].artifact
    world.folder.mkdir(parents=True)
    assert not plan(tmp_path).stages["world"].done
    world.close(MANIFEST)
    assert plan(tmp_path).stages["world"].done
    assert plan(tmp_path, only=["world"]).done
    assert not plan(tmp_path, only=["world"], force=["world"]).done
    assert plan(tmp_path).artifacts() == {"world": world.folder}


def test_the_table_shows_order_kind_state_artifact_and_needs(tmp_path: Path) -> None:
    found = plan(tmp_path, only=["fit"])
    found.stages["world"].artifact.folder.mkdir(parents=True)
    found.stages["world"].artifact.close(MANIFEST)
    rows = [line.split() for line in found.table().splitlines()]
    assert rows[1] == [
        "world",
        "make",
        "done,",
        "made",
        "by",
        "other",
        "code",
        str(found.stages["world"].artifact.folder),
        "-",
    ]
    assert rows[2] == ["fit", "make", "would", "run", str(found.stages["fit"].artifact.folder), "world"]


def test_the_table_says_how_what_is_done_was_made(tmp_path: Path) -> None:
    source = "stages.fit.data.source=${stage:world}"

    def states(**options: list[str]) -> dict[str, str]:
        rows = plan(tmp_path, source, only=["report"], **options).table().splitlines()
        return {row.split()[0]: row.partition("make  ")[2].partition("  ")[0] for row in rows[1:]}

    plan(tmp_path)  # writes the file
    made(tmp_path / "x.yaml", source)
    assert states() == {"world": "done", "fit": "done", "report": "done"}
    again = {"world": "would run", "fit": "done, made from other inputs", "report": "done"}
    assert states(force=["world"]) == again
    folders = {name: planned.artifact.folder for name, planned in plan(tmp_path, source).stages.items()}
    edit(folders["world"] / "manifest.json", finished="at another time")
    edit(folders["report"] / "manifest.json", source="other")
    edit(folders["fit"] / "manifest.json", resumed_by={"source": "other", "inputs": {}}, files=None)
    assert states() == {
        "world": "done",
        "fit": "done, unchecked, made by other code and from other inputs",
        "report": "done, made by other code and from other inputs",
    }


def edit(path: Path, **changes: object) -> None:
    """Change an object in a file; None removes a key."""
    told = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in told.items() if value is not None}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ["wrld"]}, r"unknown stage 'wrld' on the command line; did you mean 'world'\?"),
        ({"force": ["wrld"]}, r"unknown stage 'wrld' on the command line; did you mean 'world'\?"),
        ({"only": ["fit"], "force": ["other"]}, r"cannot force 'other': no chosen stage needs it"),
    ],
)
def test_wrong_choices_are_refused(tmp_path: Path, options: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(tmp_path, **options)


def test_an_unknown_stage_in_a_setting_is_named_with_its_line(tmp_path: Path) -> None:
    message = r"unknown stage 'wrld' at stages.fit.data.source \(command line\); did you mean 'world'\?"
    with pytest.raises(ConfigError, match=message):
        plan(tmp_path, "stages.fit.data.source=${stage:wrld}")


def test_a_cycle_of_stages_is_spelled_out(tmp_path: Path) -> None:
    message = r"stages depend on each other in a cycle: (world -> fit -> world|fit -> world -> fit) \(.*\)"
    with pytest.raises(ConfigError, match=message):
        plan(tmp_path, "stages.world.data.source=${stage:fit}")


def test_stages_that_are_done_are_not_checked_again(tmp_path: Path) -> None:
    broken = ["stages.other.data.target=gone.module:Gone"]
    with pytest.raises(ConfigError, match=r"no module 'gone.module'"):
        plan(tmp_path, *broken).checked()
    artifact = plan(tmp_path, *broken).stages["other"].artifact
    artifact.folder.mkdir(parents=True)
    artifact.close(MANIFEST)
    assert plan(tmp_path, *broken).checked().stages["other"].done


def test_a_module_that_fails_on_import_is_found_before_a_run_though_not_in_its_source(
    tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "unlucky.py").write_text("class RecordStage:\n    def make(self): ...\n    merge = make\n\n1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    changed = plan(tmp_path, "stages.other.data={target: 'unlucky:RecordStage'}")
    changed.checked(imported=False)
    with pytest.raises(ConfigError, match="cannot be imported: ZeroDivisionError"):
        changed.checked()


SETTINGS = """\
experiment: x
parts:
  checkpoint: {target: "lightning.pytorch.callbacks:ModelCheckpoint", filename: last, enable_version_counter: false}
  tokenizer: models/tiny
  policy: {target: "m:load", model: models/tiny, tokenizer: "${parts.tokenizer}", dtype: float32}
stages:
  rl:
    module: {target: "m:M", policy: "${parts.policy}", lr: 1, betas: [0.9, 0.95], mode: group}
    data: {target: "d:D", path: ./rows.csv, shuffle: true}
    callbacks: {checkpoint: "${parts.checkpoint}", guard: {target: "g:G", kl: null}}
    trainer: {max_epochs: 3}
"""


def test_settings_of_a_run_are_what_may_differ_without_plumbing(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(SETTINGS)
    plan = Plan.of(load(tmp_path / "x.yaml", ["seed=3", "stages.rl.module.lr=2"]))
    assert plan.settings() == {
        **{"experiment": "x", "seed": 3, "processes": 1, "parts.policy.dtype": "float32"},
        "changes": "stages.rl.module.lr=2",
        **{"stages.rl.module.lr": 2, "stages.rl.module.betas[0]": 0.9, "stages.rl.module.betas[1]": 0.95},
        **{"stages.rl.module.mode": "group", "stages.rl.data.shuffle": True, "stages.rl.callbacks.guard.kl": None},
        "stages.rl.trainer.max_epochs": 3,
    }


def test_changes_are_what_an_experiment_sets_otherwise_than_its_bases(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(SETTINGS)
    assert Plan.of(load(tmp_path / "x.yaml")).settings()["changes"] == ""
    own = "rl: {module: {mode: null}, callbacks: {guard: null}, data: {target: 'd:E', path: ./b.csv}}"
    (tmp_path / "y.yaml").write_text(f"base: x.yaml\nexperiment: y\nstages: {{{own}}}\n")
    changes = Plan.of(load(tmp_path / "y.yaml", ["stages.rl.data.shuffle=false"])).settings()["changes"]
    removed = "stages.rl.module.mode=None, stages.rl.callbacks.guard=None, stages.rl.data=E"
    assert changes == f"{removed}, stages.rl.data.shuffle=False"
