"""ReasonRAG's trees, preferences and outcome rewards, made small: what is made, broken off, shared by two ranks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from datamodules.records import pair_from_row, read_rows
from datamodules.tree_search import read_trees
from tests import forked, micro
from tests.lives import Break, live, moments
from tests.micro import artifacts, metrics, weights
from tests.test_chain import contents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("without_reports")]
CONFIG = micro.CONFIGS / "reasonrag" / "sft_on_chosen.yaml"  # it has all stages of reasonrag.yaml, and an arm
LAST = ("reasonrag_dpo", "reasonrag_sft_on_chosen", "reasonrag_outcome_rl")
SMALL = (
    *("devices=1", *micro.TINY_WORLD, "parts.reasonrag_protocol.iterations=6"),
    'stages.reasonrag_sft.module.policy={target: "modules.policy:random_policy", '
    'tokenizer: "${stage:reasonrag_tokenizer}/tokenizer", '
    "hidden_size: 64, layers: 1, heads: 4, kv_heads: 2, feed_forward: 128}",
    *("parts.warm_up_optimizer.lr=1e-2", "stages.reasonrag_sft.data.path=${stage:reasonrag_teach}"),
    *("stages.reasonrag_sft.data.batch_size=8", "stages.reasonrag_sft.data.micro_batch=8"),
    *(
        "stages.reasonrag_sft.trainer.max_epochs=12",
        "parts.reasonrag_expander.temperature=1.2",
        "parts.reasonrag_simulator.temperature=1.0",
    ),
    f"stages.reasonrag_search.data.questions={micro.questions(0, 0.5)}",
    *("stages.reasonrag_search.data.depth=6", "stages.reasonrag_search.data.chunk=4"),
    # A policy this small is seldom right, so its values differ by less than the 0.2 of the config.
    *("stages.reasonrag_pairs.data.unit=4", "stages.reasonrag_pairs.data.min_gap=0.01"),
    "stages.reasonrag_dpo.data.batch_size=2",
    "stages.reasonrag_sft_on_chosen.data.batch_size=2",
    *(f"parts.rl_questions={micro.questions(0.5, 0.8)}", "parts.reasonrag_curve.every=1"),
    *("stages.reasonrag_outcome_rl.data.questions_per_iteration=4", "stages.reasonrag_outcome_rl.data.micro_batch=2"),
    "stages.reasonrag_outcome_rl.trainer.max_epochs=2",
)
ONLY = tuple(argument for stage in LAST for argument in ("--stage", stage))


class Made(NamedTuple):
    """A run of these stages, and its moments by stage and kind."""

    stages: dict[str, Path]
    moments: Counter[tuple[str, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    output = tmp_path_factory.mktemp("preferences") / "runs"
    with moments() as counted:
        assert micro.run(*SMALL, f"output={output}", *ONLY, config=CONFIG) == 0
    return Made(artifacts(output, "sft_on_chosen"), counted)


def test_turns_that_were_sampled_are_what_is_learnt_from(made: Made) -> None:
    """Every side of a pair is a turn of the trees, to the token, in the context that it was sampled in."""
    sampled = {
        (path[-1].turn.uid, path[-1].turn.context_ids, path[-1].turn.action_ids)
        for tree in read_trees(made.stages["reasonrag_search"])
        for path in tree.paths()
        if path[-1].turn is not None
    }
    pairs = made.stages["reasonrag_pairs"]
    sides = [
        side.turns[-1]
        for row in read_rows(pairs / "data" / "pairs.jsonl", "pair/2")
        for pair in [pair_from_row(row)]
        for side in (pair.chosen, pair.rejected)
    ]
    assert len(sides) == 2 * metrics(pairs)["pairs"] > 4
    assert {(turn.uid, turn.context_ids, turn.action_ids) for turn in sides} <= sampled
    assert all(turn.context_ids for turn in sides), "rendered anew"


def test_the_trees_are_counted_and_every_way_to_learn_moves_the_policy(made: Made) -> None:
    costs = json.loads((made.stages["reasonrag_search"] / "manifest.json").read_text())["costs"]
    assert costs["tokens"]["policy"] > 1000
    before = weights(made.stages["reasonrag_sft"])
    for stage in LAST:
        after = weights(made.stages[stage])
        assert 0 < max(float((after[name] - before[name]).abs().max()) for name in before) < 0.1
    assert "dpo/chosen_drift" in metrics(made.stages["reasonrag_dpo"])


def test_broken_off_in_every_stage_it_ends_in_the_bytes_of_an_unbroken_run(made: Made, tmp_path: Path) -> None:
    planned = [
        Break(stage, kind, max(1, made.moments[stage, kind] // 2))
        for stage, kind in (
            ("reasonrag_outcome_rl", "turn"),
            ("reasonrag_outcome_rl", "update"),
            ("reasonrag_outcome_rl", "checkpoint"),
            ("reasonrag_search", "turn"),
            ("reasonrag_search", "file"),
            ("reasonrag_pairs", "file"),
            ("reasonrag_dpo", "update"),
            ("reasonrag_dpo", "checkpoint"),
            ("reasonrag_chosen", "file"),
            ("reasonrag_sft_on_chosen", "update"),
        )
    ]
    assert all(made.moments[one.stage, one.kind] for one in planned)
    arguments = ["--config", str(CONFIG), *SMALL, f"output={tmp_path / 'runs'}", *ONLY]
    live(planned, arguments)
    again = artifacts(tmp_path / "runs", "sft_on_chosen")
    for stage, folder in made.stages.items():
        assert contents(again[stage]) == contents(folder), stage


def test_two_ranks_make_what_one_makes(made: Made, tmp_path: Path) -> None:
    """Records to the byte, for they come from the same policy; weights but for the order of sums."""
    policy = f"parts.reasonrag_start.model={made.stages['reasonrag_sft'] / 'model'}"
    arguments = [*SMALL, policy, f"output={tmp_path / 'runs'}", *ONLY]
    ended = forked.run("--config", str(CONFIG), *arguments, "devices=2")
    assert ended.returncode == 0, ended.stderr
    two = artifacts(tmp_path / "runs", "sft_on_chosen")
    for stage in ("reasonrag_search", "reasonrag_pairs", "reasonrag_chosen"):
        assert contents(two[stage]) == contents(made.stages[stage]), stage
    for stage in LAST:
        new, old = weights(two[stage]), weights(made.stages[stage])
        assert max(float((new[name] - old[name]).abs().max()) for name in old) < 1e-4, stage
