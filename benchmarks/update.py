"""How fast a policy learns from episodes of mixed lengths, and how much memory their log-probabilities take.

    python -m benchmarks.update [--model assets/world_base] [--episodes 64] [--tokens 16384]

An update is the clipped loss of 64 made-up episodes of 2 to 8 turns with its backward pass, entropies included; the
optimiser is left out. `ours` sorts them by length, cuts them into passes under a budget of padded tokens and computes
logits of sampled tokens alone, a few at a time. The peer, `padded, whole logits`, is the plain way, without a fused
output layer: batches in the order of arrival, as many rows as a batch of the longest could have under the same budget,
logits of every position. Both run the same weights on the same tokens, alternating in one process; `loss` says that
they compute the same. Tokens a second are those of the episodes, without padding.

The second table is the peak memory of the log-prob pass alone (hidden states to log-probs and entropies, and back) at
the vocabulary of Qwen3, beside the size of the logits. Ratios of times above 1 say that ours is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.made_up_episodes import WORLD_BASE, load_model, made_up_episodes
from benchmarks.measures import alternating, peak_bytes, ratios
from benchmarks.report import report, table
from envs.packing import PackedSequence, SequenceBatch, by_length, collate, pack
from modules.functional.linear_logprobs import linear_logprobs
from modules.functional.logprobs import token_entropy, token_logprobs
from modules.functional.losses import clipped_policy_loss
from modules.sequence_logprobs import logprobs_and_entropy

Ask = Callable[[PreTrainedModel, SequenceBatch], tuple[Tensor, Tensor]]


def whole_logits(model: PreTrainedModel, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
    """The peer's log-probs and entropies, `[B, T]`, from logits of every position."""
    logits_BTV = model(input_ids=batch.ids_BT, attention_mask=batch.attention_BT, use_cache=False).logits[:, :-1]
    logps_BT = token_logprobs(logits_BTV, batch.ids_BT[:, 1:])
    with torch.no_grad():
        entropy_BT = token_entropy(logits_BTV)
    return tuple(torch.nn.functional.pad(values_BT, (1, 0)) for values_BT in (logps_BT, entropy_BT))  # pyright: ignore


def update(model: PreTrainedModel, batches: Sequence[SequenceBatch], ask: Ask) -> tuple[float, float]:
    """Gradients of an update; returns its loss and its mean entropy."""
    model.zero_grad()
    count = float(sum(int(batch.loss_mask_BT.sum()) for batch in batches))
    losses = entropies = 0.0
    for batch in batches:
        logps_BT, entropy_BT = ask(model, batch)
        mask_BT, advantages_BT = batch.loss_mask_BT, batch.channels["advantages"]
        clips: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.2, "denominator": count}
        loss = clipped_policy_loss(logps_BT, batch.logps_BT, advantages_BT, mask_BT, **clips)
        loss.backward()
        losses += float(loss.detach())
        entropies += float(entropy_BT.detach()[mask_BT].sum()) / count
    return losses, entropies


def with_advantages(sequence: PackedSequence, model: PreTrainedModel, number: int) -> PackedSequence:
    """The sequence with the log-probs of the model itself and an advantage, so that nothing is clipped."""
    batch = move_data_to_device(collate([sequence]), model.device)
    with torch.no_grad():
        logps_T = logprobs_and_entropy(model, batch)[0][0].cpu()
    sequence.logps_T = logps_T
    sequence.channels = {"advantages": torch.where(sequence.loss_mask_T, float(number % 5 - 2), 0.0)}
    return sequence


def measured_memory(tokens: int, vocabulary: int, width: int, device: str) -> Iterator[dict[str, Any]]:
    """Peak memory of the log-prob pass: whole logits, and a few at a time."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn((tokens, width), generator=generator).to(device).requires_grad_()
    weight = (torch.randn((vocabulary, width), generator=generator) / width**0.5).to(device).requires_grad_()
    ids = torch.randint(vocabulary, (tokens,), generator=generator).to(device)

    def whole() -> None:
        logits = (hidden @ weight.T)[None]
        with torch.no_grad():
            token_entropy(logits)
        token_logprobs(logits, ids[None]).sum().backward()

    def ours() -> None:
        linear_logprobs(hidden, weight, ids)[0].sum().backward()

    logits = tokens * vocabulary * 4
    gradients = (hidden.numel() + weight.numel()) * 4  # which both leave behind
    for name, run in {"ours": ours, "whole logits": whole}.items():
        hidden.grad = weight.grad = None
        peak = peak_bytes(run, device) - gradients
        row = {"way": name, "tokens": tokens, "vocabulary": vocabulary, "logits_mb": logits / 2**20}
        yield row | {"peak_mb": peak / 2**20, "peak/logits": round(peak / logits, 3)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(WORLD_BASE), help="folder of a causal language model")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, nargs=2, default=(2, 8), help="least and most of an episode")
    parser.add_argument("--tokens", type=int, default=16384, help="padded tokens of a forward pass, of both")
    parser.add_argument("--memory-tokens", type=int, default=1024, help="of the log-prob pass; 0: not measured")
    parser.add_argument("--vocabulary", type=int, default=151_936, help="of the log-prob pass")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where the JSON is written too")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model = load_model(options.model, options.dtype, options.device)
    vocabulary = model.get_input_embeddings().weight.shape[0]  # pyright: ignore
    episodes = made_up_episodes(options.episodes, int(vocabulary), turns=tuple(options.turns))
    packed = [pack(sequence) for episode in episodes for sequence in episode.sequences()]
    sequences = [with_advantages(sequence, model, number) for number, sequence in enumerate(packed)]
    rows = max(1, options.tokens // max(map(len, sequences)))
    cuts = {
        "ours": list(by_length(sequences, length=len, tokens=options.tokens)),
        "padded, whole logits": [sequences[start : start + rows] for start in range(0, len(sequences), rows)],
    }
    asks: dict[str, Ask] = {"ours": logprobs_and_entropy, "padded, whole logits": whole_logits}
    batches = {
        name: [move_data_to_device(collate(part), model.device) for part in parts] for name, parts in cuts.items()
    }
    ways = {name: lambda name=name: update(model, batches[name], asks[name]) for name in cuts}
    times = alternating(ways, options.repeats)
    tokens = sum(map(len, sequences))
    lines: list[dict[str, Any]] = []
    for name, run in ways.items():
        loss, entropy = run()
        padded = sum(batch.ids_BT.numel() for batch in batches[name])
        line = {"way": name, "passes": len(batches[name]), "tokens": tokens, "padded_tokens": padded}
        line |= {"loss": loss, "entropy": entropy} | times[name] | {"tokens_per_s": tokens / times[name]["seconds"]}
        model.zero_grad()
        line["peak_mb"] = peak_bytes(run, options.device) / 2**20
        lines.append(line)
    facts: dict[str, Any] = {"settings": {name: str(value) for name, value in vars(options).items()}}
    facts["ratios"] = ratios(*lines) | {"peak_ratio": round(lines[1]["peak_mb"] / lines[0]["peak_mb"], 2)}
    if options.memory_tokens:
        facts["memory"] = list(measured_memory(options.memory_tokens, options.vocabulary, 64, options.device))
        print(table(facts["memory"]), end="\n\n")
    report(lines, packages=("torch", "transformers"), json_file=options.json, **facts)


if __name__ == "__main__":
    main()
