"""Hours of every stage of `configs/prorag/qwen3_8b.yaml` by arithmetic, from what a device does and what episodes hold.

    python -m benchmarks.qwen3_hours [--share 0.25] [--flops 150e12] [--bandwidth 2.04e12] [--gpus 4]

Sampling: tokens over tokens a second, `share` of the limit that memory bandwidth sets at the config's rows. Training
and scoring: operations over `flops`, the rate that an update reaches: 2 a weight and token to score, 8 to train with
activations computed again, 6 where the weights are frozen under adapters. `make gpu-check` measures these three.
Retrieval, API calls, loading and saving are not in it. Counts of steps, judged steps, simulations and rows are read
from the config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.qwen3_shapes import SHAPES
from benchmarks.report import ROOT, read_options
from pipeline.loader import load

CONFIG = ROOT / "configs" / "prorag" / "qwen3_8b.yaml"
SHAPE = SHAPES["8B"]
SCORE, TRAIN, TRAIN_ADAPTERS = 2, 8, 6  # operations a weight and token


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of the arithmetic. Where no GPU check has been kept, none of the first four is measured."""

    gpus: int = 4
    bandwidth: float = 2.04e12  # bytes a second; data sheet of an A100-80G
    share: float = 0.25  # of the bandwidth limit that decoding reaches
    flops: float = 150e12  # operations a second that training reaches; 48 % of the data sheet's 312e12
    turns: float = 5.0  # of an episode
    sampled: float = 750.0  # tokens of an episode that the policy samples
    whole: float = 3000.0  # tokens of an episode with prompt and passages
    teacher_tokens: float = 1700.0  # of a teacher's episode, which shows one passage a search
    refine_questions: float = 99_350.0  # nine tenths of MuSiQue's and HotpotQA's training sets
    test_questions: float = 36_790.0  # of all five test sets


def tokens_per_s(inputs: Inputs, rows: int) -> float:
    """Tokens a second that one GPU samples with so many rows under way, half of an episode read on average."""
    steps = inputs.bandwidth / SHAPE.bytes_a_step([round(inputs.whole / 2)] * rows)
    return inputs.share * rows * steps


def hours(stages: Mapping[str, Any], inputs: Inputs) -> dict[str, float]:
    """Hours of each stage.

    Args:
        stages: of the loaded config.
        inputs: the rest.
    """

    def decode(tokens: float, rows: int) -> float:
        return tokens / (inputs.gpus * tokens_per_s(inputs, rows)) / 3600

    def compute(tokens: float, a_weight: float) -> float:
        return tokens * a_weight * SHAPE.parameters / (inputs.gpus * inputs.flops) / 3600

    data = {name: stage.data for name, stage in stages.items()}
    sft = 19_938 * (1 - data["sft"]["validation"]) * inputs.teacher_tokens
    search = data["search"]
    expander, questions = search["expander"]["batch_size"], search["questions"]["sample"]
    played = search["simulations"] * questions
    turn = inputs.sampled / inputs.turns
    iterations = stages["rl"].trainer.max_epochs
    episodes = iterations * data["rl"]["questions_per_iteration"] * data["rl"]["group_size"]
    rollout = stages["rl"].callbacks["rollout"]["sampler"]["batch_size"]
    prm = stages["prm"].trainer.max_epochs * data["label"]["most"] / inputs.turns * inputs.whole  # a step a turn
    rl = decode(episodes * inputs.sampled, rollout) + compute(episodes * inputs.whole, TRAIN_ADAPTERS + 2 * SCORE)
    evaluation = decode(inputs.test_questions * inputs.sampled, data["eval_sft"]["sampler"]["batch_size"])
    return {
        "sft": compute(sft, TRAIN),
        "search": decode(played * (search["width"]["children"] * turn + inputs.sampled), expander),
        "prm": compute(prm, TRAIN),
        "sample": decode(inputs.refine_questions * inputs.sampled, data["sample"]["sampler"]["batch_size"]),
        "rft": compute(sft, TRAIN),
        "rl": rl,
        "eval_*": 3 * evaluation,
    }


def section(inputs: Inputs, origins: Mapping[str, str], device: str) -> str:
    """The device's inputs with their origins, and the hours of each stage, as docs/scale.md has them."""
    by_stage = hours(load(CONFIG).experiment.stages, inputs)
    in_all, gpus = sum(by_stage.values()), inputs.gpus
    lines = [
        f"`configs/prorag/qwen3_8b.yaml` takes about {in_all / 24:.1f} days on {gpus} {device}.",
        "Retrieval and API calls are not in it. **Hours are arithmetic**, by `python -m benchmarks.qwen3_hours`.\n",
        "| input | value | where it is from |",
        "|---|---|---|",
        f"| `bandwidth` | {inputs.bandwidth / 1e12:.2f} TB/s | {origins['bandwidth']} |",
        f"| `share` of the bandwidth limit that decoding reaches | {inputs.share:.2f} | {origins['share']} |",
        f"| `flops` that training and scoring reach | {inputs.flops / 1e12:.0f} TFLOP/s | {origins['flops']} |",
        f"\n| stage | hours on {gpus} GPUs |",
        "|---|--:|",
        *(f"| `{stage}` | {value:.1f} |" for stage, value in by_stage.items()),
        f"| all | {in_all:.1f} |",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the section for these inputs."""
    options = vars(read_options(__doc__, arguments, **asdict(Inputs())))
    inputs = Inputs(**{name: options[name] for name in asdict(Inputs())})
    print(section(inputs, dict.fromkeys(("bandwidth", "share", "flops"), "given"), "such GPUs"))


if __name__ == "__main__":
    main()
