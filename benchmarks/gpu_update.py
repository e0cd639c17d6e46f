"""How well an update of models of Qwen3's shape uses the device: model FLOPs utilisation (MFU) of a full fine-tune.

    python -m benchmarks.gpu_update [--shapes 0.6B 1.7B] [--episodes 16] [--turns 8]

An update is what `benchmarks.update` measures (the clipped loss over made-up episodes, in passes under a token budget,
logits of sampled tokens alone) with an AdamW step after it, all in bfloat16. Operations are the model's own
(`Shape.update_flops`): forward and backward, attention under its causal mask, nothing recomputed. `mfu` is their rate
over what the maker's data sheet says of the device, blank where it is not listed; `of_matmul` over that of a large
product of matrices, measured in the same run. `peak_gb` is what an update takes beyond weights and the optimiser's
state, gradients included. Medians of repeats.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import move_data_to_device

from benchmarks.device_limits import device_name, matrix_flops_per_s, nominal_flops_per_s
from benchmarks.made_up_episodes import made_up_episodes
from benchmarks.measures import alternating, peak_bytes
from benchmarks.qwen3_shapes import SHAPES, Shape, untrained
from benchmarks.report import report
from benchmarks.update import update, with_advantages
from envs.packing import by_length, collate, pack
from modules.sequence_logprobs import logprobs_and_entropy

PACKAGES = ("torch", "transformers")


def measured(shape: Shape, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds, tokens, operations and peak memory of an update of a model of this shape."""
    model = untrained(shape, device=options.device).model
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    turns = (options.turns, options.turns)
    episodes = made_up_episodes(options.episodes, shape.vocabulary, turns=turns, sampled=60, observed=190)
    packed = [pack(sequence) for episode in episodes for sequence in episode.sequences()]
    sequences = [with_advantages(sequence, model, number) for number, sequence in enumerate(packed)]
    batches = [
        move_data_to_device(collate(part), model.device)
        for part in by_length(sequences, length=len, tokens=options.tokens)
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=options.device != "cpu")

    def run() -> None:
        update(model, batches, logprobs_and_entropy)
        optimizer.step()

    seconds = alternating({"": run}, options.repeats)[""]["seconds"]
    model.zero_grad()  # so that they count as the update's
    trained = sum(int(sequence.loss_mask_T.sum()) for sequence in sequences)
    return {
        "tokens": sum(map(len, sequences)),
        "trained": trained,
        "seconds": seconds,
        "flops": shape.update_flops(list(map(len, sequences)), trained),
        "peak_gb": peak_bytes(run, options.device) / 1e9,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["0.6B", "1.7B"])
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--turns", type=int, default=8, help="of 60 sampled and 190 observed tokens each")
    parser.add_argument("--tokens", type=int, default=8320, help="of a forward pass")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="where the JSON is written too")
    options = parser.parse_args(arguments)
    matmul = matrix_flops_per_s(options.device, 8192 if options.device != "cpu" else 512)
    nominal = nominal_flops_per_s(options.device)
    rows: list[dict[str, Any]] = []
    for name in options.shapes:
        figures = measured(SHAPES[name], options)
        rate = figures["flops"] / figures["seconds"]
        row: dict[str, Any] = {"shape": name} | figures | {"tokens_per_s": figures["tokens"] / figures["seconds"]}
        row |= {"tflops_per_s": rate / 1e12, "mfu": nominal and round(rate / nominal, 3)}
        rows.append(row | {"of_matmul": round(rate / matmul, 3)})
    facts = {"device": device_name(options.device), "matmul_tflops_per_s": matmul / 1e12}
    facts["nominal_tflops_per_s"] = nominal and nominal / 1e12
    settings = {name: str(value) for name, value in vars(options).items()}
    report(rows, packages=PACKAGES, json_file=options.json, settings=settings, **facts)


if __name__ == "__main__":
    main()
