"""The whole quickstart, made small: what it makes, made again, broken off, shared by two ranks."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

import train
from datamodules.records import LABELLED, labelled_from_row, read_rows
from datamodules.tree_search import read_trees
from pipeline.locations import leaves
from tests import forked, micro
from tests.evaluation.report.fakes import Page
from tests.lives import PAGES, Break
from tests.micro import Quickstart, artifacts, metrics, scalars, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(train.__file__).parent
EVALUATIONS = ("eval_teacher", "eval_sft", "eval_rl_outcome", "eval_rft", "eval_rl")
FITS = ("sft", "prm", "rft", "rl", "rl_outcome")
MEASURES = ("em", "f1", "flawed", "unresolved", "searches", "valid_steps")


def contents(folder: Path) -> dict[str, Any]:
    """All that a stage made but times and places: hashes of its files, its metrics and its costs."""
    files = [path for path in folder.rglob("*") if path.is_file() and "checkpoints" not in path.parts]
    told = {"manifest.json", "config.yaml", "results.json", "events.tar"}
    kept = [path for path in files if path.name not in told and path.suffix != ".seconds"]
    hashes = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}
    costs = json.loads((folder / "manifest.json").read_text())["costs"]
    del costs["cpu_seconds"]
    return dict(sorted(hashes.items())) | metrics(folder) | {"costs": costs}


def test_every_stage_is_made_or_fitted(quickstart: Quickstart) -> None:
    made = artifacts(quickstart.output)
    assert {*FITS, *EVALUATIONS, "world", "teach", "search", "label", "rank", "sample", "refine"} <= set(made)
    for stage, folder in made.items():
        manifest = json.loads((folder / "manifest.json").read_text())
        assert (manifest["stage"], manifest["kind"]) == (stage, "fit" if stage in FITS else "make")
        assert (folder / "model" / "model.safetensors").exists() == (stage in FITS)


def test_every_stage_finds_something_to_learn_from(quickstart: Quickstart) -> None:
    """Else the tests that share this run would compare nothing with nothing."""
    made = artifacts(quickstart.output)
    rows = [json.loads(line) for line in (made["label"] / "data" / "labels.jsonl").read_text().splitlines()]
    labels = [label for row in rows for label in row["labels"] if label is not None]
    assert len(labels) == metrics(made["label"])["steps"]
    assert {*labels} == {0.0, 1.0}
    kept = metrics(made["refine"])
    assert 0 < kept["refine/steps_kept"] < kept["refine/steps"]
    for arm in ("rl", "rl_outcome"):
        spread = [event.value for event in scalars(quickstart.output, arm).Scalars("frac_reward_zero_std")]
        assert len(spread) == 2
        assert min(spread) < 1


def test_every_step_of_what_was_played_out_is_judged_once(quickstart: Quickstart) -> None:
    made = artifacts(quickstart.output)
    rows = read_rows(made["label"] / "data" / "labels.jsonl", LABELLED)
    held = [
        one.episode.turns[place].uid
        for one in map(labelled_from_row, rows)
        for place, label in enumerate(one.labels)
        if label is not None
    ]
    manifest = json.loads((made["label"] / "manifest.json").read_text())
    assert len(held) == len(set(held)) == manifest["costs"]["judged_steps"]
    paths = [path for tree in read_trees(made["search"]) for path in tree.paths()]
    nodes = {path[-1].turn.uid for path in paths if path[-1].turn is not None}
    assert nodes & set(held), "steps of the trees"
    assert set(held) - nodes, "and others"


@pytest.mark.parametrize(("before", "after"), [("sft", "rft"), ("rft", "rl"), ("sft", "rl_outcome")])
def test_a_fit_goes_on_from_the_weights_it_is_given(quickstart: Quickstart, before: str, after: str) -> None:
    made = artifacts(quickstart.output)
    old, new = weights(made[before]), weights(made[after])
    moved = max(float((new[name] - old[name]).abs().max()) for name in new)
    assert 0 < moved < 0.05


def test_results_have_a_row_with_intervals_for_every_evaluation(quickstart: Quickstart) -> None:
    rows = json.loads((quickstart.output / "quickstart" / "seed0" / "results.json").read_text())["rows"]
    assert {row["stage"] for row in rows} == set(EVALUATIONS)
    for row in rows:
        assert row["n"] == 8
        assert row["em_low"] <= row["em"] <= row["em_high"]
        assert row["f1_low"] <= row["f1"] <= row["f1_high"]
        assert None not in [row[name] for name in ("flawed", "unresolved", "searches", "valid_steps", "recall")]
    assert next(row["em"] for row in rows if row["stage"] == "eval_teacher") == 1


def final(quickstart: Quickstart) -> dict[str, Any]:
    """What the last evaluation found."""
    results = artifacts(quickstart.output)["eval_rl"] / "data" / "results.json"
    (row,) = json.loads(results.read_text())["rows"]
    return row


@pytest.mark.parametrize("measure", MEASURES)
def test_an_evaluation_has_an_interval_for_every_measure(quickstart: Quickstart, measure: str) -> None:
    low, value, high = (final(quickstart)[measure + end] for end in ("_low", "", "_high"))
    assert None not in (low, value, high)
    assert low <= value <= high


def test_the_page_has_a_row_for_every_stage_and_links_their_pages(quickstart: Quickstart) -> None:
    folder = quickstart.output / "quickstart" / "seed0"
    shown = Page((folder / "report.html").read_text())
    assert "Could not be read" not in shown.html
    stages = {row[0]: row[2] for row in shown.tables["All stages of quickstart/seed0"][1:]}
    assert stages == {stage: artifact.name for stage, artifact in artifacts(quickstart.output).items()}
    links = [link for link in shown.hrefs if link.endswith("/report.md")]
    assert {Path(link).parent.name.split("-")[0] for link in links} >= {"search", "label", "rank"}
    assert all((folder / link).exists() for link in links)
    assert len((folder / "report.md").read_text().splitlines()) < 110
    assert "Question:" in (artifacts(quickstart.output)["search"] / "report.md").read_text(), "a tree as text"


@pytest.mark.parametrize(
    ("stage", "tag"),
    [("sft", "loss"), ("prm", "accuracy"), ("rl", "rewards/prm/mean"), ("rl", "adv/std"), ("rl", "entropy"),
     ("rl_outcome", "rewards/answer_f1/mean"), ("search", "search/nodes"), ("eval_rl", "eval/world/test/em")],
)  # fmt: skip
def test_tensorboard_shows_it(quickstart: Quickstart, stage: str, tag: str) -> None:
    assert tag in scalars(quickstart.output, stage).Tags()["scalars"]


@pytest.mark.parametrize("arm", ["rl", "rl_outcome"])
def test_tensorboard_shows_the_curve_and_the_episodes_of_reinforcement_learning(
    quickstart: Quickstart, arm: str
) -> None:
    events = scalars(quickstart.output, arm)
    for measure in MEASURES:
        assert [event.step for event in events.Scalars(f"eval/world/dev/{measure}")] == [0, 1, 2]
    texts = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("episodes/text_summary")]
    assert ["Question: " in text and ", advantage " in text for text in texts] == [True, True]


def test_tensorboard_shows_the_results_of_the_experiment_beside_its_settings(quickstart: Quickstart) -> None:
    summary = EventAccumulator(str(quickstart.output / "quickstart" / "seed0" / "summary")).Reload()
    shown = {measure: summary.Scalars(f"eval_rl/world/test/{measure}")[0].value for measure in MEASURES}
    assert shown == pytest.approx({measure: final(quickstart)[measure] for measure in MEASURES})
    written = summary.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    settings = metadata.parse_session_start_info_plugin_data(written).hparams
    assert settings["parts.credit.beta"].number_value == 0.3
    assert settings["stages.rl.data.questions_per_iteration"].number_value == 2, "as the command line has it"


def test_again_it_is_done_without_work(quickstart: Quickstart, capsys) -> None:
    made = {stage: (folder / "manifest.json").read_bytes() for stage, folder in artifacts(quickstart.output).items()}
    assert micro.chain(quickstart.output) == 0
    lines = capsys.readouterr().out.splitlines()[: len(made)]
    assert [line.split(" ")[:2] for line in lines] == [[f"{stage}:", "done,"] for stage in made]
    again = {stage: (folder / "manifest.json").read_bytes() for stage, folder in artifacts(quickstart.output).items()}
    assert again == made


def test_an_ablation_makes_only_what_differs(quickstart: Quickstart, capsys) -> None:
    gone = ("stages.sample.", "stages.rl_outcome.")
    config = micro.CONFIGS / "ablations" / "no_refinement.yaml"
    overrides = [setting for setting in micro.CHAIN if not setting.startswith(gone)]
    assert micro.run(*overrides, f"output={quickstart.output}", config=config) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if re.search(": (make|fit) ", line)] == ["rl", "eval_rl"]
    whole, without = artifacts(quickstart.output), artifacts(quickstart.output, "no_refinement")
    assert set(whole) - set(without) == {"sample", "refine", "rft", "eval_rft", "rl_outcome", "eval_rl_outcome"}
    assert {stage for stage in without if without[stage] != whole[stage]} == {"rl", "eval_rl"}


def breaks(moments: Counter[tuple[str, str]], seed: int) -> Iterator[Break]:
    """Every stage is killed at a moment drawn from a seed, the long ones at one of every kind, after they were asked
    to leave; the pages at the end."""
    draw = random.Random(seed)
    kinds: dict[str, list[str]] = {}
    for stage, kind in moments:
        kinds.setdefault(stage, []).append(kind)
    pages = kinds.pop(PAGES)
    for stage, found in kinds.items():
        if stage in ("sft", "search", "rl"):
            # In the first half of what there is, so that there is something left for the next one.
            yield Break(stage, found[-1], 1, signal.SIGTERM)
            for kind in reversed(found):
                yield Break(stage, kind, draw.randint(1, max(1, moments[stage, kind] // 2)))
        else:
            kind = draw.choice(found)
            yield Break(stage, kind, draw.randint(1, moments[stage, kind]))
    yield Break(PAGES, pages[0], draw.randint(2, moments[PAGES, pages[0]]))


def test_a_run_that_is_broken_off_in_every_stage_ends_in_the_bytes_of_an_unbroken_one(
    quickstart: Quickstart, tmp_path: Path
) -> None:
    """In another folder and with another hash seed, too."""
    planned = list(breaks(quickstart.moments, seed=0))
    made = artifacts(quickstart.output)
    assert {one.stage for one in planned} == {*made, PAGES}
    kinds = {(one.stage, one.kind) for one in planned}
    assert {("sft", "update"), ("sft", "checkpoint"), ("search", "turn"), ("rl", "turn")} <= kinds
    assert {("rl", "update"), ("rl", "checkpoint"), ("label", "file"), ("refine", "file")} <= kinds
    (tmp_path / "breaks.json").write_text(json.dumps(planned))
    arguments = ["--config", str(micro.QUICKSTART), *micro.CHAIN, f"output={tmp_path / 'runs'}"]
    command = [sys.executable, "-m", "tests.lives", str(tmp_path / "breaks.json"), *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1700)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr, "a signal is obeyed without a word"
    again = artifacts(tmp_path / "runs")
    assert list(again) == list(made)
    for stage in made:
        assert again[stage].name == made[stage].name
        assert contents(again[stage]) == contents(made[stage]), stage


def test_two_ranks_make_what_one_makes(quickstart: Quickstart, tmp_path: Path) -> None:
    """Records to the byte where they come from the same policy; weights but for the order of sums."""
    one, policy = artifacts(quickstart.output), artifacts(quickstart.output)["sft"] / "model"
    given = [f"parts.sft_policy.model={policy}", f"output={tmp_path / 'runs'}", "devices=2"]
    ended = forked.run("--config", str(micro.QUICKSTART), *micro.CHAIN, *given)
    assert ended.returncode == 0, ended.stderr
    two = artifacts(tmp_path / "runs")
    assert set(two) == set(one)
    for stage in ("world", "teach", "search", "label", "sample", "eval_teacher", "eval_sft"):
        assert contents(two[stage]) == contents(one[stage]), stage
    for stage in ("sft", "prm"):
        new, old = weights(two[stage]), weights(one[stage])
        assert max(float((new[name] - old[name]).abs().max()) for name in old) < 1e-3, stage


def test_how_far_the_policy_moves_from_where_reinforcement_began_is_seen(quickstart: Quickstart) -> None:
    for stage in ("rl", "rl_outcome"):
        first, last = (event.value for event in scalars(quickstart.output, stage).Scalars("kl"))
        assert abs(first) < 1e-6 < last


def test_pairs_of_the_same_search_make_a_reward_model(quickstart: Quickstart) -> None:
    left_out = ("stages.sample.", "stages.rl.", "stages.rl_outcome.", "parts.curve.", "parts.episodes.")
    small = [argument for argument in micro.CHAIN if not argument.startswith(left_out)]
    config = micro.CONFIGS / "reward_model" / "pairs.yaml"
    assert micro.run(*small, f"output={quickstart.output}", config=config) == 0
    made, whole = artifacts(quickstart.output, "pairs"), artifacts(quickstart.output)
    assert made["search"] == whole["search"]
    assert len((made["label"] / "data" / "pairs.jsonl").read_text().splitlines()) == metrics(made["label"])["pairs"] > 0
    assert any(not torch.equal(weight, weights(whole["prm"])[name]) for name, weight in weights(made["prm"]).items())
    assert "accuracy" in scalars(quickstart.output, "prm", "pairs").Tags()["scalars"]


@pytest.mark.parametrize("name", ["paper", "official"])
def test_reinforcement_with_the_choices_of_the_paper_and_of_its_code_trains(quickstart: Quickstart, name: str) -> None:
    written = yaml.safe_load((ROOT / "configs" / "prorag" / f"{name}.yaml").read_text())
    choices = [f"stages.rl.{'.'.join(map(str, key))}={value}" for key, value in leaves(written["stages"]["rl"])]
    assert micro.chain(quickstart.output, *choices, f"experiment={name}_rl", "--stage", "rl") == 0
    made, plain = artifacts(quickstart.output, f"{name}_rl"), artifacts(quickstart.output)
    assert made["prm"] == plain["prm"]
    assert metrics(made["rl"])["grad_norm"] > 0
    before, after, usual = weights(made["rft"]), weights(made["rl"]), weights(plain["rl"])
    assert any(not torch.equal(before[key], after[key]) for key in before)
    assert any(not torch.equal(usual[key], after[key]) for key in usual)
