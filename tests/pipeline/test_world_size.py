"""Sizes that a run's processes cannot share: refused as it is planned, with the line of the setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError
from pipeline.loader import load
from pipeline.plan import Plan
from pipeline.world_size import check_ranks

RECIPES = (
    *("prorag/qwen3_8b", "prorag/qwen3_8b_one_gpu", "search_r1/qwen25_3b", "hiprag/hiprag_qwen25_3b"),
    *("reasonrag/reasonrag_qwen25_7b", "sirag/sirag_qwen25_0.5b"),
)
WIDE = {"stages.prm.data.batch_size=16", "stages.rl.data.questions_per_iteration=16"}  # docs/scale.md
STAGE = """\
experiment: toy
output: runs
stages:
  learn:
    module: {{target: "tests.toy_training:Slope"}}
    data:
      target: "{target}"
      {settings}
"""


def planned(path: Path, *overrides: str) -> Plan:
    return Plan.of(load(path, overrides)).checked()


@pytest.mark.parametrize("sampler", ["vllm", "in_process"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_for_gpus_plans_on_any_number_of_them(recipe: str, sampler: str, tmp_path: Path) -> None:
    settings = [f"output={tmp_path}", f"parts.sampling.like={sampler}"]  # one word changes every frozen stage
    one = planned(Path(f"configs/{recipe}.yaml"), *settings)
    plans = dict.fromkeys((1, 2, 4, 8, 16), one)
    if "qwen3_8b" in recipe:
        plans[16] = planned(Path(f"configs/{recipe}.yaml"), *settings, *WIDE)
    for ranks, plan in plans.items():
        for name, stage in plan.experiment.stages.items():
            check_ranks(stage.data, ("stages", name, "data"), plan.locations, ranks)
    assert ("VLLMSampler" in str(one.experiment.stages)) == (sampler == "vllm")


@pytest.mark.parametrize("left_out", sorted(WIDE))
def test_sixteen_gpus_have_no_share_of_eight_questions(left_out: str, tmp_path: Path) -> None:
    settings = [f"output={tmp_path}", "devices=4", "num_nodes=4", *(WIDE - {left_out})]
    with pytest.raises(ConfigError, match=r"16 ranks.*: change it at stages\..* \(configs/prorag/qwen3_8b\.yaml:\d+\)"):
        planned(Path("configs/prorag/qwen3_8b.yaml"), *settings)


EPISODES, QUESTIONS = "datamodules.episode_data:EpisodeData", "datamodules.question_data:QuestionData"
ASKED = 'questions: {target: "tests.toy_rl:Asked"}'


@pytest.mark.parametrize(
    ("target", "settings", "message"),
    [
        (EPISODES, ("path: /", "batch_size: 6"), r"batch_size 6: the batch.* among 4 ranks: .*batch_size \(.*:9\)"),
        (EPISODES, ("path: /", "batch_size: 12", "micro_batch: 6"), r"batch_size 12, micro_batch 6: .* \(.*:9\)"),
        (QUESTIONS, (ASKED, "questions_per_iteration: 8", "updates: 4"), r"2 questions an update.* \(.*:9\)"),
        (QUESTIONS, (ASKED, "micro_batch: 6"), r"batch_size 64, micro_batch 6: .* \(.*:9\)"),
        ("datamodules.label_data:LabelData", ("path: /", "micro_batch: 6"), r"batch_size 8, micro_batch 6.* \(.*:9\)"),
        ("datamodules.base_text:WorldText", ("world: /", "batch_size: 6", "sequences: 6"), r"batch_size 6: .*:9\)"),
    ],
)
def test_the_line_of_a_size_that_does_not_divide(
    target: str, settings: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text(STAGE.format(target=target, settings="\n      ".join(settings)))
    with pytest.raises(ConfigError, match=message):
        planned(path, "devices=4")


def test_a_budget_of_tokens_takes_any_number_of_ranks(tmp_path: Path) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text(STAGE.format(target=EPISODES, settings="path: /\n      batch_size: 5\n      micro_tokens: 512"))
    assert planned(path, "devices=3").chosen == ("learn",)
