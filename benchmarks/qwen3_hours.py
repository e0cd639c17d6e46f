"""Hours of every stage of `configs/prorag/qwen3_8b.yaml` by arithmetic, from what a device does and what episodes hold.

    python -m benchmarks.qwen3_hours [--share 0.25] [--flops 150e12] [--bandwidth 2.04e12] [--gpus 4]

Sampling: tokens over tokens a second, a share of the limit that memory bandwidth sets at the config's rows: `share` in
process, `engine_share` through vLLM. What is not sampled is read once, for prefixes are kept. Reading, training and
scoring: operations over `flops`, the rate that an update reaches: 2 a weight and token to read or score, 8 to train
with activations computed again, 6 where the weights are frozen under adapters. `make gpu-check` measures `bandwidth`,
`share` and `flops`; nothing of vLLM has been measured on a GPU. Retrieval, API calls, loading and saving are not in it.
Counts of steps, judged steps, simulations and rows are read from the config.
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
FROZEN = ("search", "sample", "eval_*")  # stages whose hours are sampling by weights that nothing trains
PROOF = 256 * 8  # tokens of the fixed prompts that prove an update
# The engine needs the log-probs of the trainer too; the sampler in this process is the trainer.
SAMPLERS = {"vllm": (), "in_process": ("parts.sampling.like=in_process", "stages.rl.module.importance_cap=null")}


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of the arithmetic. Where no GPU check has been kept, none is measured."""

    gpus: int = 4
    bandwidth: float = 2.04e12  # bytes a second; data sheet of an A100-80G
    share: float = 0.25  # of the bandwidth limit that decoding in process reaches
    flops: float = 150e12  # operations a second that training reaches; 48 % of the data sheet's 312e12
    float32_flops: float = 19.5e12  # the same in float32, which updates are proved in; data sheet
    engine_share: float = 0.5  # of the bandwidth limit that vLLM's decoding reaches
    disk: float = 2e9  # bytes a second that a rank writes or reads
    host: float = 25e9  # bytes a second between a GPU and the machine's memory
    cpu_flops: float = 1e12  # operations a second of a rank's share of the cores
    turns: float = 5.0  # of an episode
    sampled: float = 750.0  # tokens of an episode that the policy samples
    whole: float = 3000.0  # tokens of an episode with prompt and passages
    teacher_tokens: float = 1700.0  # of a teacher's episode, which shows one passage a search
    refine_questions: float = 99_350.0  # nine tenths of MuSiQue's and HotpotQA's training sets
    test_questions: float = 36_790.0  # of all five test sets


def tokens_per_s(inputs: Inputs, rows: int, share: float) -> float:
    """Tokens a second that one GPU samples with so many rows under way, half of an episode read on average."""
    steps = inputs.bandwidth / SHAPE.bytes_a_step([round(inputs.whole / 2)] * rows)
    return share * rows * steps


def hours(stages: Mapping[str, Any], inputs: Inputs) -> dict[str, float]:
    """Hours of each stage.

    Args:
        stages: of the loaded config.
        inputs: the rest.
    """

    def sample(sampler: Mapping[str, Any], sampled: float, read: float, most: int = 1024) -> float:
        engine = sampler.get("engine")
        rows, share = (engine["rows"], inputs.engine_share) if engine else (sampler["batch_size"], inputs.share)
        per_s = inputs.gpus * tokens_per_s(inputs, min(rows, most), share)
        return sampled / per_s / 3600 + compute(read, SCORE)

    def compute(tokens: float, a_weight: float) -> float:
        return tokens * a_weight * SHAPE.parameters / (inputs.gpus * inputs.flops) / 3600

    data = {name: stage.data for name, stage in stages.items()}
    read = inputs.whole - inputs.sampled
    sft = 19_938 * (1 - data["sft"]["validation"]) * inputs.teacher_tokens
    search = data["search"]
    played = search["simulations"] * search["questions"]["sample"]
    expanded = search["width"]["children"] * inputs.sampled / inputs.turns
    module, rollout = stages["rl"].module, stages["rl"].callbacks["rollout"]["sampler"]
    iterations = stages["rl"].trainer.max_epochs
    group = data["rl"]["questions_per_iteration"] * data["rl"]["group_size"]
    episodes = iterations * group
    prm = stages["prm"].trainer.max_epochs * data["label"]["most"] / inputs.turns * inputs.whole  # a step a turn
    passes = TRAIN_ADAPTERS + SCORE * (3 if module.get("importance_cap") else 2)  # scored by reward model and reference
    rl = sample(rollout, episodes * inputs.sampled, episodes * read, group // inputs.gpus)
    rl += compute(episodes * inputs.whole, passes)
    if engine := rollout.get("engine"):
        rl += (
            iterations * (given_s(inputs, engine.get("adapters", False), module["lora"]["r"]) + slept_s(inputs)) / 3600
        )
    tests = [data[f"eval_{name}"]["sampler"] for name in ("sft", "rft", "rl")]
    return {
        "sft": compute(sft, TRAIN),
        "search": sample(search["expander"], played * (expanded + inputs.sampled), played * read),
        "prm": compute(prm, TRAIN),
        "sample": sample(
            data["sample"]["sampler"], inputs.refine_questions * inputs.sampled, inputs.refine_questions * read
        ),
        "rft": compute(sft, TRAIN),
        "rl": rl,
        "eval_*": sum(
            sample(one, inputs.test_questions * inputs.sampled, inputs.test_questions * read) for one in tests
        ),
    }


def given_s(inputs: Inputs, adapters: bool, rank: int) -> float:
    """Seconds in which one update's weights are written, read by the server and proved on the fixed prompts.

    Adapters of all linear layers in float32 are written and read, and proved by the trainer's own model. Whole weights
    in bfloat16 are written, read, and read again to be proved on the CPU.
    """
    proof = PROOF * SCORE * SHAPE.parameters
    if adapters:
        return 2 * 4 * SHAPE.adapter_parameters(rank) / inputs.disk + proof / inputs.float32_flops
    return 3 * 2 * SHAPE.parameters / inputs.disk + proof / inputs.cpu_flops


def slept_s(inputs: Inputs) -> float:
    """Seconds in which the server's weights leave the GPU for the update and come back."""
    return 2 * 2 * SHAPE.parameters / inputs.host


def section(inputs: Inputs, origins: Mapping[str, str], device: str) -> str:
    """The inputs with their origins, and the hours of each stage by either sampler, as docs/scale.md has them."""
    stages = {name: load(CONFIG, how).experiment.stages for name, how in SAMPLERS.items()}
    served, in_process = (hours(each, inputs) for each in stages.values())
    in_all, gpus, rl = sum(served.values()), inputs.gpus, stages["vllm"]["rl"]
    given, merged = (given_s(inputs, adapters, rl.module["lora"]["r"]) for adapters in (True, False))
    values = {
        "`bandwidth`": ("bandwidth", f"{inputs.bandwidth / 1e12:.2f} TB/s"),
        "`share` of the bandwidth limit that decoding reaches": ("share", f"{inputs.share:.2f}"),
        "`flops` that training and scoring reach": ("flops", f"{inputs.flops / 1e12:.0f} TFLOP/s"),
        "`float32_flops`": ("float32_flops", f"{inputs.float32_flops / 1e12:.1f} TFLOP/s"),
        "`engine_share`, the same of vLLM": ("engine_share", f"{inputs.engine_share:.2f}"),
        "`disk` of a rank": ("disk", f"{inputs.disk / 1e9:.0f} GB/s"),
        "`host`, GPU to memory": ("host", f"{inputs.host / 1e9:.0f} GB/s"),
        "`cpu_flops` of a rank's cores": ("cpu_flops", f"{inputs.cpu_flops / 1e12:.0f} TFLOP/s"),
    }
    frozen = [sum(by_stage[name] for name in FROZEN) for by_stage in (served, in_process)]
    lines = [
        f"`configs/prorag/qwen3_8b.yaml` takes about {in_all / 24:.1f} days on {gpus} {device}, in process "
        f"{sum(in_process.values()) / 24:.1f}.",
        "Retrieval and API calls are not in it. **Hours are arithmetic**, by `python -m benchmarks.qwen3_hours`.\n",
        "| input | value | where it is from |",
        "|---|---|---|",
        *(f"| {words} | {value} | {origins.get(name, 'assumed')} |" for words, (name, value) in values.items()),
        f"\n| stage | hours on {gpus} GPUs through vLLM | in process |",
        "|---|--:|--:|",
        *(f"| `{stage}` | {value:.1f} | {in_process[stage]:.1f} |" for stage, value in served.items()),
        f"| all | {in_all:.1f} | {sum(in_process.values()):.1f} |",
        f"| of these `search`, `sample` and `eval_*` | {frozen[0]:.1f} | {frozen[1]:.1f} |",
        f"\nHanding over an update of `rl`: adapters {given:.1f} s. Merged weights {merged:.0f} s, "
        f"{(merged - given) * (rl.trainer.max_epochs or 0) / 3600:.0f} hours more in all.",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the section for these inputs."""
    options = vars(read_options(__doc__, arguments, **asdict(Inputs())))
    inputs = Inputs(**{name: options[name] for name in asdict(Inputs())})
    print(section(inputs, dict.fromkeys(asdict(inputs), "given"), "such GPUs"))


if __name__ == "__main__":
    main()
