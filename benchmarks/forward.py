"""What a forward pass of sampling costs: the fused decoder against the model of transformers over the same cache.

    python -m benchmarks.forward [--models tiny smollm2] [--batches 1 8 64] [--context 400]

Both decoders have the same random weights (speed does not depend on them) and the same rows, each three quarters to all
of the context long. `step` is one token for every row, `read` is 150 tokens of observation for up to 16 rows. Both take
turns in one process; seconds of the clock, and of this process's cores added up, are medians. Ratios say how many times
faster the fused decoder is.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarks.measures import alternating, ratios
from benchmarks.report import report
from modules.decoder.fused_decoder import FusedDecoder
from modules.decoder.library_decoder import LibraryDecoder

PACKAGES = ("torch", "transformers")
MOST_READ = 16  # rows


def model(name: str) -> PreTrainedModel:
    """A random model: `tiny` is the quickstart's, `smollm2` has the shape of SmolLM2-135M."""
    torch.manual_seed(0)
    if name == "tiny":
        return Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=4096, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                head_dim=32, intermediate_size=384, tie_word_embeddings=True,
            )
        ).eval()  # fmt: skip
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
            intermediate_size=1536, tie_word_embeddings=True, max_position_embeddings=8192,
        )
    ).eval()  # fmt: skip


@torch.inference_mode()
def measure(policy: PreTrainedModel, batch: int, context: int, new: int, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds of `step` and `read` by each decoder, in milliseconds: `{"step": {"fused_cpu_ms": …}, "read": …}`."""
    random = torch.Generator().manual_seed(0)
    lengths_B = torch.randint(context * 3 // 4, context, (batch,), generator=random)
    ids_B = torch.randint(0, 1000, (batch,), generator=random)
    lengths = lengths_B.tolist()
    starts = [max(length - new, 0) for length in lengths[:MOST_READ]]
    observations = [torch.randint(0, 1000, (new,), generator=random).tolist() for _ in starts]
    steps, reads = {}, {}
    for name, decoder in (("fused", FusedDecoder(policy)), ("library", LibraryDecoder(policy))):
        decoder.rows.reserve(batch, context + new, ())
        steps[name] = partial(decoder.step, ids_B, lengths_B, lengths)
        reads[name] = partial(decoder.read, 0, observations, starts)
    return {"step": _row(alternating(steps, repeats)), "read": _row(alternating(reads, repeats))}


def _row(taken: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    costs = {
        f"{name}_{unit}": 1e3 * taken[name][seconds]
        for name in taken
        for unit, seconds in (("ms", "seconds"), ("cpu_ms", "cpu_seconds"))
    }
    return costs | ratios(taken["fused"], taken["library"])


def main(arguments: list[str] | None = None) -> None:
    """Measure, print the table and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=("tiny", "smollm2"), default=["tiny", "smollm2"])
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64], help="rows")
    parser.add_argument("--context", type=int, default=400, help="tokens of the longest row")
    parser.add_argument("--new", type=int, default=150, help="tokens that are read")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where the JSON is written too")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    for name in options.models:
        for dtype in options.dtypes:
            policy = model(name).to(getattr(torch, dtype))
            for batch in options.batches:
                for what, costs in measure(policy, batch, options.context, options.new, options.repeats).items():
                    rows.append({"model": name, "dtype": dtype, "batch": batch, "pass": what} | costs)
    settings = {key: getattr(options, key) for key in ("context", "new", "repeats", "threads")}
    report(rows, packages=PACKAGES, json_file=options.json, settings=settings)


if __name__ == "__main__":
    main()
