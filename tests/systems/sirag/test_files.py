"""SIRAG's experiments: two agents with weights of their own, a generator that no stage of theirs trains."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import train
from pipeline.loader import load
from systems.sirag.protocol import DECISION_MAKER, GENERATOR, KNOWLEDGE_SELECTOR

FOLDER = Path(train.__file__).parent / "configs" / "sirag"
AGENTS = (DECISION_MAKER, KNOWLEDGE_SELECTOR)


def stages(name: str, output: Path) -> dict[str, Any]:
    loaded = load(FOLDER / f"{name}.yaml", [f"output={output}"]).experiment.stages
    return {key: asdict(value) for key, value in loaded.items()}


@pytest.mark.parametrize("name", ["sirag", "sirag_qwen25_0.5b"])
def test_each_agent_is_warmed_up_on_its_own_turns_alone_and_speaks_with_its_own_weights(
    name: str, tmp_path: Path
) -> None:
    written = stages(name, tmp_path)
    for agent in AGENTS:
        warm_up = written[f"sirag_{agent}_sft"]
        assert warm_up["data"]["agents"] == [agent]
        assert warm_up["data"]["path"] == "${stage:sirag_teach}"
        assert written["eval_sirag_sft"]["data"]["sampler"]["samplers"][agent]["policy"]["model"] == (
            f"${{stage:sirag_{agent}_sft}}/model"
        )
    trained = {agent: written[f"sirag_{agent}_sft"]["module"]["policy"] for agent in AGENTS}
    assert trained[DECISION_MAKER] == trained[KNOWLEDGE_SELECTOR], "both begin at the same model"


def test_the_generator_answers_by_rule_and_the_trained_one_learns_from_flawless_episodes(tmp_path: Path) -> None:
    written = stages("sirag", tmp_path)
    everything = {name: stage["data"].get("sampler", {}).get("samplers") for name, stage in written.items()}
    samplers = {name: agents for name, agents in everything.items() if agents}
    by_rule = {name for name, agents in samplers.items() if agents[GENERATOR]["target"].endswith(":RuleReader")}
    assert {"sirag_teach", "sirag_gold", "eval_sirag_teacher", "eval_sirag_sft"} <= by_rule
    assert written["sirag_generator"]["data"]["agents"] == [GENERATOR]
    assert written["sirag_generator"]["data"]["path"] == "${stage:sirag_gold}"
    flawed = {name for name, agents in samplers.items() if any("flaws" in agents[agent] for agent in AGENTS)}
    assert flawed == {"sirag_teach"}
    assert samplers["sirag_generator_on_gold"][GENERATOR]["policy"]["model"] == "${stage:sirag_generator}/model"


def changed(arm: Any, whole: Any, *path: str) -> dict[str, Any]:
    """What an arm sets otherwise, by dotted key: None where it is left out, of another component its target."""
    if not (isinstance(arm, dict) and isinstance(whole, dict)):
        return {} if arm == whole else {".".join(path): arm}
    if arm.get("target") != whole.get("target"):
        return {".".join(path): arm["target"]}
    keys = {*arm, *whole}
    return {name: one for key in keys for name, one in changed(arm.get(key), whole.get(key), *path, key).items()}


def test_reinforcement_has_the_settings_of_the_paper(tmp_path: Path) -> None:
    loaded = load(FOLDER / "sirag.yaml", [f"output={tmp_path}"]).experiment
    module, rollout = (stages("sirag", tmp_path)["sirag_rl"][key] for key in ("module", "callbacks"))
    assert (module["clip_low"], module["clip_high"]) == (0.2, 0.2)
    credit = {key: value for key, value in module["credit"].items() if key != "target"}
    assert credit == {"alpha": 0.5, "beta": 0.5, "gamma": 1.0, "lam": 0.95}
    sampling = rollout["rollout"]["sampling"]
    assert (sampling["samples"], sampling["depth"], sampling["leaves"], len(sampling["root"])) == (2, 2, 8, 2)
    assert loaded.parts["sirag_protocol"]["retrievals"] == 4


ROLLOUT = "callbacks.rollout"
ARMS: dict[str, dict[str, Any]] = {
    "without_judge": {"module.credit.alpha": 1.0, "module.credit.beta": 0.0, f"{ROLLOUT}.rewards.judge": None},
    "without_tree": {
        "data.group_size": 8,
        "data.micro_batch": 24,
        f"{ROLLOUT}.sampling": "envs.rollout:independent_groups",
    },
    "chat_judge": {f"{ROLLOUT}.rewards.judge.reward.judge": "systems.sirag.chat_choices:ChatChoices"},
}


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_differs_in_one_thing(name: str, tmp_path: Path) -> None:
    written = stages(name, tmp_path)
    assert changed(written[f"sirag_{name}_rl"], written["sirag_rl"]) == ARMS[name]


def test_the_system_s_stages_bear_its_name(tmp_path: Path) -> None:
    assert all("sirag" in stage for stage in set(stages("sirag", tmp_path)) - {"world", "drills"})
