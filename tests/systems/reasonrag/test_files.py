"""ReasonRAG's experiments: the paper's figures, and arms that differ from the system in one thing alone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import train
from pipeline.loader import load
from pipeline.origins import leaves

FOLDER = Path(train.__file__).parent / "configs" / "reasonrag"
ENVIRONMENT = "eval_reasonrag_base.data.environment"
PAPER = {
    f"{ENVIRONMENT}.protocol.target": "systems.reasonrag.protocol:ReasonRAG",
    f"{ENVIRONMENT}.protocol.iterations": 8,
    f"{ENVIRONMENT}.top_k": 3,
    f"{ENVIRONMENT}.limits.turn_tokens": 256,
    "eval_reasonrag_base.data.sampler.policy.model": "Qwen/Qwen2.5-7B-Instruct",
    "eval_reasonrag_base.data.sampler.temperature": None,  # greedy
    "reasonrag_search.data.questions.limit": 4603,
    "reasonrag_search.data.simulations": 64,
    "reasonrag_search.data.depth": 7,
    "reasonrag_search.data.environment.protocol.iterations": 7,
    "reasonrag_search.data.selection.exploration": 1.414,
    "reasonrag_search.data.width.children": 2,
    "reasonrag_search.data.leaf_value.rollouts": 4,
    "reasonrag_search.data.leaf_value.alpha": 0.9,
    "reasonrag_search.data.backup.discount": 1.0,
    "reasonrag_pairs.data.min_gap": 0.01,
    "reasonrag_pairs.data.labels.target": "datamodules.tree.labels:rollouts",
    "reasonrag_dpo.module.beta": 0.3,
    "reasonrag_dpo.module.optimizer.lr": 1e-6,
    "reasonrag_dpo.data.max_tokens": 10000,
    "reasonrag_dpo.data.validation": 0.1,
    "reasonrag_dpo.trainer.max_epochs": 1,
    "reasonrag_outcome_rl.data.questions.limit": 10000,
    "reasonrag_outcome_rl_half.data.questions.limit": 5000,
    **{f"reasonrag_outcome_rl.data.questions.weights.{name}": count
       for name, count in {"popqa": 704, "hotpotqa": 2843, "2wikimultihopqa": 1056}.items()},
}  # fmt: skip


def stages(name: str, output: Path) -> dict[str, Any]:
    return {
        key: asdict(value)
        for key, value in load(FOLDER / f"{name}.yaml", [f"output={output}"]).experiment.stages.items()
    }


def test_the_paper_s_figures(tmp_path: Path) -> None:
    written = {".".join(map(str, key)): value for key, value in leaves(stages("reasonrag_qwen25_7b", tmp_path))}
    assert {key: written.get(key) for key in PAPER} == PAPER
    assert {key.split(".")[3] for key in written if key.startswith("eval_reasonrag_base.data.datasets.")} == {
        "popqa", "hotpotqa", "2wikimultihopqa", "bamboogle", "musique"
    }  # fmt: skip


def test_popqa_s_questions_are_for_training_or_for_the_test(tmp_path: Path) -> None:
    paper = stages("reasonrag_qwen25_7b", tmp_path)
    trained = paper["reasonrag_outcome_rl"]["data"]["questions"]["sources"]["popqa"]["part"]
    tested = paper["eval_reasonrag_base"]["data"]["datasets"]["popqa"]["questions"]["part"]
    assert (tested, trained) == ([0.0, 0.7], [0.7, 1.0])


def test_half_of_the_questions_is_half_of_everything(tmp_path: Path) -> None:
    for name, size in (("reasonrag", "sample"), ("reasonrag_qwen25_7b", "limit")):
        both = stages(name, tmp_path)
        whole, half = both["reasonrag_outcome_rl"], both["reasonrag_outcome_rl_half"]
        assert whole["trainer"]["max_epochs"] == 2 * half["trainer"]["max_epochs"]
        asked = whole["data"].pop("questions"), half["data"].pop("questions")
        assert asked[1] == asked[0] | {size: asked[1][size]}
        assert asked[1][size] == (asked[0][size] // 2 if size in asked[0] else 350)  # of the world's 700
        whole["trainer"].pop("max_epochs"), half["trainer"].pop("max_epochs")
        warm_ups = tuple(one["module"]["optimizer"].pop("warmup_steps") for one in (whole, half))
        assert warm_ups == {"reasonrag": (5, 5), "reasonrag_qwen25_7b": (23, 11)}[name]
        assert whole == half


def test_the_system_s_stages_bear_its_name(tmp_path: Path) -> None:
    assert all(
        "reasonrag" in stage for stage in set(stages("reasonrag", tmp_path)) - {"world", "drills", "eval_teacher"}
    )


def test_the_warm_up_has_the_episodes_of_a_step_that_the_others_have(tmp_path: Path) -> None:
    """A turn is a sequence here, so a step has more of them: six a question on the average, and as many drills."""
    own = stages("reasonrag", tmp_path)["reasonrag_sft"]
    assert own["data"]["batch_size"] == 16 * 6 + 192
    assert own["data"]["batch_size"] % own["data"]["micro_batch"] == 0
    other = stages("../search_r1/search_r1", tmp_path)["search_r1_sft"]
    assert other["data"]["batch_size"] == 16 + 192
    assert own["trainer"] == other["trainer"]
    assert own["module"]["optimizer"] == other["module"]["optimizer"]


ARMS: dict[str, dict[tuple[str, ...], Any]] = {
    "reference_free": {("module", "reference_free"): True},
    "tree_backup": {("data", "path"): "${stage:reasonrag_tree_backup_pairs}"},
    "judged_values": {("data", "path"): "${stage:reasonrag_judged_values_pairs}"},
    "prorag_pairs": {
        ("data", "path"): "${stage:reasonrag_prorag_pairs}",
        **{("module", name, "model"): "${stage:prorag_sft}/model" for name in ("policy", "reference")},
    },
}


def test_every_file_of_the_folder_is_looked_at() -> None:
    named = {path.stem for path in FOLDER.glob("*.yaml")}
    assert named == {*ARMS, "sft_on_chosen", "reasonrag", "reasonrag_qwen25_7b"}


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_of_preference_optimisation_differs_in_one_thing(name: str, tmp_path: Path) -> None:
    whole, arm = stages("reasonrag", tmp_path), stages(name, tmp_path)
    own, expected = (dict(leaves(each[stage])) for each, stage in (
        (arm, f"reasonrag_{name}_dpo"), (whole, "reasonrag_dpo")
    ))  # fmt: skip
    assert own == expected | ARMS[name]
    assert f"eval_reasonrag_{name}_dpo" in arm
    assert all(arm[key] == value for key, value in whole.items()), "one store for all"


def test_labels_without_rollouts_are_of_the_same_trees(tmp_path: Path) -> None:
    arm = stages("tree_backup", tmp_path)
    own, whole = arm["reasonrag_tree_backup_pairs"], arm["reasonrag_pairs"]
    labels = {"target": "datamodules.tree.labels:tree_backup", "alpha": 0.9}
    assert own["data"] == whole["data"] | {"labels": labels}


def test_a_model_s_values_select_and_label_nothing(tmp_path: Path) -> None:
    arm = stages("judged_values", tmp_path)
    search, whole = (arm[f"reasonrag_{name}search"]["data"] for name in ("judged_values_", ""))
    assert search.pop("leaf_value")["target"] == "systems.reasonrag.judged_value:JudgedValue"
    assert whole.pop("leaf_value")["target"] == "datamodules.tree.values:SPRE"
    assert search == whole
    assert arm["reasonrag_judged_values_pairs"]["data"]["labels"]["target"] == "datamodules.tree.labels:tree_backup"


def test_what_imitates_the_chosen_turns_begins_where_preference_optimisation_does(tmp_path: Path) -> None:
    arm = stages("sft_on_chosen", tmp_path)
    assert arm["reasonrag_chosen"]["data"]["pairs"] == arm["reasonrag_dpo"]["data"]["path"]
    assert arm["reasonrag_sft_on_chosen"]["data"]["path"] == "${stage:reasonrag_chosen}"
    assert arm["reasonrag_sft_on_chosen"]["module"]["policy"] == arm["reasonrag_dpo"]["module"]["policy"]
    assert all(arm[key] == value for key, value in stages("reasonrag", tmp_path).items())


def test_prorag_s_own_stages_are_those_of_its_file(tmp_path: Path) -> None:
    both, prorag = stages("prorag_pairs", tmp_path), stages("../prorag/prorag", tmp_path)
    assert both["prorag_label"] == prorag["prorag_label"]
    assert both["prorag_search"] == prorag["prorag_search"]
    evaluation = both["eval_reasonrag_prorag_pairs_dpo"]["data"]
    assert evaluation["environment"] == prorag["eval_prorag_sft"]["data"]["environment"]
    assert evaluation["sampler"]["policy"]["model"] == "${stage:reasonrag_prorag_pairs_dpo}/model"
