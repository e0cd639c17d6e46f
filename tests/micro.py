"""The experiments of the embedded world made small: evaluation in seconds, the whole quickstart in half a minute."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import train

CONFIGS = Path(train.__file__).parent / "configs"
WORLD, QUICKSTART = CONFIGS / "world.yaml", CONFIGS / "quickstart.yaml"
SMALL = (
    *("stages.world.data.people=40", "stages.world.data.works=20", "stages.world.data.organisations=15"),
    *("stages.world.data.cities=12", "stages.world.data.countries=4", "stages.world.data.questions=120"),
    "stages.world.data.splits={sft: 60, dev: 20, test: 40}",
    *("parts.limits.turns=3", "parts.limits.turn_tokens=12"),
    *(
        "stages.eval_untrained.data.sampler.policy.hidden_size=32",
        "stages.eval_untrained.data.sampler.policy.layers=1",
    ),
    "stages.eval_untrained.data.sampler.policy.feed_forward=32",
)


class Quickstart(NamedTuple):
    """A whole small quickstart: its output folder, and the moments of its stages by kind (`tests.lives`)."""

    output: Path
    moments: Counter[tuple[str, str]]


def questions(low: float, high: float) -> str:
    """A part of the questions that the policy is fine-tuned on: one layer answers no others."""
    source = "datamodules.sources.world_questions:WorldQuestions"
    return f'{{target: "{source}", path: "${{stage:world}}", split: sft, part: [{low}, {high}]}}'


# One layer that knows half of its lesson by heart: some of its steps are true and some are not, at any temperature.
TINY_WORLD = (
    *("stages.world.data.people=12", "stages.world.data.works=6", "stages.world.data.organisations=5"),
    *("stages.world.data.cities=4", "stages.world.data.countries=2", "stages.world.data.questions=40"),
    *("stages.world.data.paraphrases=1", "stages.world.data.namesakes=0", "stages.world.data.hops=[1]"),
    *("stages.world.data.splits={sft: 28, dev: 4, test: 8}", "parts.limits.turns=6"),
)
CHAIN = (
    *("devices=1", "parts.curve.every=1", "parts.episodes.every=1", *TINY_WORLD),
    'stages.sft.module.policy={target: "modules.policy:random_policy", tokenizer: "${parts.tokenizer}", '
    "hidden_size: 64, layers: 1, heads: 4, kv_heads: 2, feed_forward: 128}",
    *("stages.sft.module.optimizer.lr=1e-2", "stages.sft.data.batch_size=4", "stages.sft.trainer.max_epochs=20"),
    *(f"stages.search.data.questions={questions(0, 0.3)}", "stages.search.data.simulations=8"),
    *("stages.search.data.depth=6", "stages.search.data.chunk=4", "stages.prm.trainer.max_steps=8"),
    *(f"stages.sample.data.questions={questions(0, 0.3)}", "stages.sample.data.unit=4"),
    *(f"stages.{arm}.data.questions={questions(0.5, 0.7)}" for arm in ("rl", "rl_outcome")),
    *(f"stages.{arm}.data.questions_per_iteration=2" for arm in ("rl", "rl_outcome")),
    *(f"stages.{arm}.data.micro_batch=2" for arm in ("rl", "rl_outcome")),
    "parts.temperature=1.2",
    *(f"stages.{arm}.data.group_size=4" for arm in ("rl", "rl_outcome")),
    *(f"stages.{arm}.trainer.max_epochs=2" for arm in ("rl", "rl_outcome")),
    *(f"stages.{arm}.module.optimizer.lr=1e-3" for arm in ("rl", "rl_outcome")),  # two updates are to be seen
)


def run(*arguments: str, config: Path = WORLD) -> int:
    """`train.py --config config arguments`, leaving the process's signal handling as it was."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return train.main(["--config", str(config), *arguments])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def small_world(output: Path, *arguments: str) -> int:
    """The small world into `output`; eleven turns for the teacher, three for the untrained model."""
    limits = "limits: {target: 'envs.types:Limits', turn_tokens: 64}"
    environment = 'target: "envs.retrieval:RetrievalEnvironment", protocol: "${parts.protocol}"'
    teacher = f'stages.eval_teacher.data.environment={{{environment}, retriever: "${{parts.retriever}}", {limits}}}'
    return run(*SMALL, teacher, f"output={output}", *arguments)


def chain(output: Path, *arguments: str, config: Path = QUICKSTART) -> int:
    """Every stage of the quickstart, or of what is based on it, into `output`; on one thread, wherever it runs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return run(*CHAIN, f"output={output}", *arguments, config=config)
    finally:
        torch.set_num_threads(threads)


def artifacts(output: Path, experiment: str = "quickstart") -> dict[str, Path]:
    """The artifact folders of an experiment by stage, in the order they were made."""
    stages = json.loads((output / experiment / "seed0" / "stages.json").read_text())
    return {stage: output / place for stage, place in stages.items()}


def metrics(folder: Path) -> dict[str, Any]:
    """The headline of an artifact."""
    return json.loads((folder / "manifest.json").read_text())["metrics"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The policy of an artifact."""
    return load_file(folder / "model" / "model.safetensors")


def scalars(output: Path, stage: str, experiment: str = "quickstart") -> EventAccumulator:
    """What TensorBoard has of a stage."""
    return EventAccumulator(str(output / experiment / "seed0" / stage)).Reload()
