"""Search-R1, HiPRAG and SIRAG made small: broken off, and shared by two ranks, with what verifiers and judges give."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from safetensors.torch import load_file

from tests import forked, micro
from tests.lives import Break, live, moments
from tests.micro import artifacts
from tests.test_chain import contents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("without_reports")]


class System(NamedTuple):
    """A system's file, its training stages, its warm-ups by the part that loads them, what they start from, changes."""

    name: str
    training: tuple[str, ...]
    warm_ups: dict[str, str]
    base: str
    changes: tuple[str, ...]

    @property
    def config(self) -> Path:
        return micro.CONFIGS / self.name / f"{self.name}.yaml"

    def arguments(self, output: Path) -> list[str]:
        return [*_small(self), f"output={output}", *(word for stage in self.training for word in ("--stage", stage))]


SEARCH_R1 = System(
    "search_r1",
    ("search_r1_rl", "search_r1_ppo"),
    {"search_r1_start": "search_r1_sft"},
    "stages.search_r1_sft.module.policy",
    ("stages.search_r1_rl.data.group_size=3", "stages.search_r1_ppo.data.questions_per_iteration=12"),
)
HIPRAG = System(
    "hiprag",
    ("hiprag_rl", "hiprag_ppo", "hiprag_agreement"),
    {"hiprag_start": "hiprag_sft"},
    "stages.hiprag_sft.module.policy",
    ("stages.hiprag_rl.data.group_size=3", "stages.hiprag_ppo.data.questions_per_iteration=12"),
)
SIRAG = System(
    "sirag",
    ("sirag_rl",),
    {
        "sirag_decision_maker": "sirag_decision_maker_sft",
        "sirag_knowledge_selector": "sirag_knowledge_selector_sft",
    },
    "parts.sirag_base",
    (),
)


def _small(system: System) -> list[str]:
    first = system.training[0]
    policy = (
        f'{{target: "modules.policy:random_policy", tokenizer: "${{stage:{system.name}_tokenizer}}/tokenizer", '
        "hidden_size: 64, layers: 1, heads: 4, kv_heads: 2, feed_forward: 128}"
    )
    warm_ups = [
        change
        for stage in system.warm_ups.values()
        for change in (
            f"stages.{stage}.data.path=${{stage:{system.name}_teach}}",
            *(f"stages.{stage}.data.batch_size=8", f"stages.{stage}.data.micro_batch=8"),
            f"stages.{stage}.trainer.max_epochs=32",
        )
    ]
    return [
        *("devices=1", *micro.TINY_WORLD, "parts.warm_up_optimizer.lr=1e-2", f"parts.{system.name}_curve.every=1"),
        *(f"parts.rl_questions={micro.questions(0, 0.5)}", f"stages.{first}.data.questions_per_iteration=4"),
        *(f"stages.{first}.data.micro_batch=2", f"stages.{first}.trainer.max_epochs=2"),
        *(f"{system.base}={policy}", *warm_ups, *system.changes),
    ]


class Made(NamedTuple):
    """A run of a system's stages, and its moments by stage and kind."""

    system: System
    stages: dict[str, Path]
    moments: Counter[tuple[str, str]]


@pytest.fixture(scope="module", params=[SEARCH_R1, HIPRAG, SIRAG], ids=lambda system: system.name)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    system, output = request.param, tmp_path_factory.mktemp("system") / "runs"
    with moments() as counted:
        assert micro.run(*system.arguments(output), config=system.config) == 0
    return Made(system, artifacts(output, system.name), counted)


def models(folder: Path) -> Sequence[Path]:
    """The weights that a stage has trained, policies' and critics'."""
    return sorted(path.relative_to(folder) for path in folder.glob("**/model.safetensors"))


def test_broken_off_in_every_stage_it_ends_in_the_bytes_of_an_unbroken_run(made: Made, tmp_path: Path) -> None:
    places = [(stage, "update") for stage in made.system.warm_ups.values()]
    places += [(stage, kind) for stage in made.system.training for kind in ("turn", "update", "checkpoint", "file")]
    planned = [Break(*place, max(1, made.moments[place] // 2)) for place in places if made.moments[place]]
    assert {kind for _, kind, *_ in planned} == {"turn", "update", "checkpoint", "file"}
    arguments = ["--config", str(made.system.config), *made.system.arguments(tmp_path / "runs")]
    live(planned, arguments)
    again = artifacts(tmp_path / "runs", made.system.name)
    for stage, folder in made.stages.items():
        assert contents(again[stage]) == contents(folder), stage


def test_two_ranks_step_as_one(made: Made, tmp_path: Path) -> None:
    """Weights but for the order of sums, from the same warm-up; as much is sampled, and judges are asked as often."""
    given = [f"parts.{part}.model={made.stages[stage] / 'model'}" for part, stage in made.system.warm_ups.items()]
    arguments = [*made.system.arguments(tmp_path / "runs"), *given, "devices=2"]
    ended = forked.run("--config", str(made.system.config), *arguments)
    assert ended.returncode == 0, ended.stderr
    two = artifacts(tmp_path / "runs", made.system.name)
    for stage in made.system.training:
        old, new = made.stages[stage], two[stage]
        assert models(new) == models(old)
        for file in models(old):
            one, other = load_file(old / file), load_file(new / file)
            assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-4, (stage, file)
        assert counted(new) == counted(old), stage
        assert bool(counted(old)["judge_calls"]) == (made.system is not SEARCH_R1), "verifiers and judges were asked"


def counted(folder: Path) -> dict[str, Any]:
    """The costs of an artifact but for its time."""
    costs = json.loads((folder / "manifest.json").read_text())["costs"]
    return {name: value for name, value in costs.items() if name != "cpu_seconds"}
