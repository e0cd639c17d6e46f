"""The experiment of the embedded world made small: a whole one in a few seconds."""

from __future__ import annotations

import signal
from pathlib import Path

import train

WORLD = Path(train.__file__).parent / "configs" / "world.yaml"
SMALL = (
    *("stages.world.data.people=40", "stages.world.data.works=20", "stages.world.data.organisations=15"),
    *("stages.world.data.cities=12", "stages.world.data.countries=4", "stages.world.data.questions=120"),
    "stages.world.data.splits={sft: 60, dev: 20, test: 40}",
    *("parts.limits.turns=3", "parts.limits.turn_tokens=12"),
    *(
        "stages.eval_untrained.data.generator.policy.hidden_size=32",
        "stages.eval_untrained.data.generator.policy.layers=1",
    ),
    "stages.eval_untrained.data.generator.policy.feed_forward=32",
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
    teacher = "stages.eval_teacher.data.limits={target: 'envs.types:Limits', turn_tokens: 64}"
    return run(*SMALL, teacher, f"output={output}", *arguments)
