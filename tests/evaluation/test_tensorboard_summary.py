"""What TensorBoard makes of several experiments, read back through its own plugins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.custom_scalar.custom_scalars_plugin import CustomScalarsPlugin
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.scalar.scalars_plugin import ScalarsPlugin

from evaluation import tensorboard_summary
from tests import micro
from tests.evaluation import fake


def experiment(runs: Path, name: str, ems: list[float], **settings: Any) -> Path:
    folder = runs / name / "seed0"
    if not folder.exists():
        fake.run(runs, name, ems)
    tensorboard_summary.write(folder, {"experiment": name, "seed": 0, "lr": 1e-3, "mode": "fast"} | settings)
    return folder


def seen(runs: Path) -> TBContext:
    """What `tensorboard --logdir runs` reads."""
    multiplexer = EventMultiplexer(size_guidance={"tensors": 0, "scalars": 0})
    multiplexer.AddRunsFromDirectory(str(runs))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(runs))
    context = TBContext(data_provider=provider, multiplexer=multiplexer, logdir=str(runs))
    context.plugin_name_to_instance = {"scalars": ScalarsPlugin(context)}
    return context


def test_the_table_of_settings_knows_which_differ_between_experiments(tmp_path: Path) -> None:
    experiment(tmp_path, "base", [1, 0, 1], **{"stages.rl.beta": 0.3, "only": True})
    experiment(tmp_path, "ablation", [0, 0, 1], **{"stages.rl.beta": 0})
    context = Context(seen(tmp_path))
    request = RequestContext()
    written = context.hparams_metadata(request, "")
    entries = [run for run, tags in written.items() if "_hparams_/session_start_info" in tags]
    assert sorted(entries) == ["ablation/seed0/summary", "base/seed0/summary"]
    found = context.experiment_from_metadata(request, "", True, written, [])
    differs = {info.name: info.differs for info in found.hparam_infos}
    expected = {"experiment": True, "stages.rl.beta": True, "seed": False, "lr": False, "mode": False, "only": False}
    assert differs == expected
    metrics = {info.name.tag for info in found.metric_infos}
    assert metrics == {"eval/toy/dev/em", "eval/toy/dev/f1", "eval/toy/dev/searches"}


def test_final_metrics_carry_the_stage(tmp_path: Path) -> None:
    folder = experiment(tmp_path, "base", [1, 0, 1, 1])
    events = EventAccumulator(str(folder / "summary")).Reload()
    assert events.Scalars("eval/toy/dev/em")[0].value == 0.75


def test_settings_that_json_or_floats_cannot_hold_are_text(tmp_path: Path) -> None:
    odd = {"clip": float("inf"), "low": float("-inf"), "large": 10**400, "exact": 2**53, "who": "a\x1b[31m"}
    folder = experiment(tmp_path, "base", [1, 0], **odd)
    settings = json.loads((folder / "summary" / "summary.json").read_text())["settings"]
    expected = {"clip": "inf", "low": "-inf", "large": "1" + "0" * 400, "exact": 2**53, "who": "a\\x1b[31m"}
    assert {name: settings[name] for name in odd} == expected
    found = Context(seen(tmp_path)).hparams_metadata(RequestContext(), "")
    assert "base/seed0/summary" in found


@pytest.mark.parametrize(
    "tag",
    ["reward", "rewards/prm/mean", "entropy", "kl", "eval/world/dev/em", "eval/w/dev/flawed", "search/needless_rate"],
)
def test_the_layout_is_seen_once_and_has_a_chart_for_just_the_tags_of_training(tmp_path: Path, tag: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    for name in ("one", "two"):
        fake.run(tmp_path, name, [1, 0], stage="answers")
        manifest = tmp_path / "store" / f"answers-{name}-0" / "manifest.json"
        logged = {tag: 0.5, "rewards_of_others": 0.5}
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"metrics": logged}))
        folder = experiment(tmp_path, name, [1, 0])
        with SummaryWriter(str(folder / "rl")) as writer:
            writer.add_scalar(tag, 0.5, 3)
            writer.add_scalar("rewards_of_others", 0.5, 3)
    context = seen(tmp_path)
    plugin = CustomScalarsPlugin(context)
    plugin.get_plugin_apps()  # finds the plugin of scalars
    layout = json.loads(str(plugin.layout_impl(RequestContext(), "")))
    assert len([chart for category in layout["category"] for chart in category["chart"]]) == 1, "the others are empty"
    patterns = [p for c in layout["category"] for chart in c["chart"] for p in chart["multiline"]["tag"]]
    for name in ("one", "two"):
        run = f"{name}/seed0/rl"
        found = [plugin.scalars_impl(RequestContext(), run, pattern, "")["tag_to_events"] for pattern in patterns]
        assert [list(tags) for tags in found if tags] == [[tag]]


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    folder = experiment(tmp_path, "base", [1, 0])

    def files() -> list[tuple[str, int]]:
        return sorted((path.name, path.stat().st_mtime_ns) for path in (folder / "summary").iterdir())

    before = files()
    experiment(tmp_path, "base", [1, 0])
    assert files() == before
    experiment(tmp_path, "base", [1, 0], lr=2e-3)
    assert files() != before


FIT = """\
experiment: {name}
output: {output}
accelerator: cpu
stages:
  fit:
    module: {{target: "tests.toy_training:Slope"}}
    data: {{target: "tests.toy_training:Line"}}
    trainer: {{max_epochs: 1}}
"""


def test_a_fit_that_experiments_share_is_drawn_in_both(tmp_path: Path) -> None:
    config, runs = tmp_path / "fit.yaml", tmp_path / "runs"
    config.write_text(FIT.format(name="first", output=runs))
    assert micro.run(config=config) == 0
    config.write_text(FIT.format(name="second", output=runs))
    assert micro.run(config=config) == 0
    assert len([path for path in (runs / "store").iterdir() if path.is_dir()]) == 1
    losses = []
    for name in ("first", "second"):
        events = EventAccumulator(str(runs / name / "seed0" / "fit")).Reload()
        losses.append([(point.step, point.value) for point in events.Scalars("loss")])
    assert len(losses[0]) == 4
    assert losses[0] == losses[1]
    assert micro.run("--force", "fit", config=config) == 0
    left = [path.parts[-3] for path in runs.glob("*/seed0/fit")]
    assert left == ["second"]  # what the first drew is of an artifact that is no more


def test_runs_are_named_by_experiment_seed_and_stage_and_hold_one_artifact(tmp_path: Path) -> None:
    config, runs = tmp_path / "fit.yaml", tmp_path / "runs"
    config.write_text(
        FIT.format(name="first", output=runs) + "  numbers: {data: {target: 'tests.toys:Numbers', count: 3}}\n"
    )

    def drawn(tag: str, run: str) -> list[float]:
        return [point.value for point in EventAccumulator(str(runs / run)).Reload().Scalars(tag)]

    assert micro.run(config=config) == 0
    names = {f"first/seed0/{run}" for run in ("fit", "numbers", "summary")}
    assert set(seen(runs).multiplexer.Runs()) == names
    first = drawn("loss", "first/seed0/fit")
    changed = ("stages.fit.module.lr=0.5", "stages.numbers.data.count=5")
    assert micro.run(*changed, config=config) == 0
    assert set(seen(runs).multiplexer.Runs()) == names
    assert drawn("numbers", "first/seed0/numbers") == [5]
    second = drawn("loss", "first/seed0/fit")
    assert len(second) == len(first)
    assert second != first
    assert micro.run(config=config) == 0, "nothing runs: the first artifacts are shown again"
    assert (drawn("loss", "first/seed0/fit"), drawn("numbers", "first/seed0/numbers")) == (first, [3])
