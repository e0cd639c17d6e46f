"""Model FLOPs utilisation (MFU) of an update of whole bfloat16 weights of Qwen3's shapes.

An update is the clipped loss over made-up episodes, in passes under a token budget, and a step of AdamW. Operations are
the model's own (`Shape.update_flops`): nothing recomputed, attention under its causal mask, logits of sampled tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from lightning.pytorch.utilities import move_data_to_device
from transformers import PreTrainedModel

from benchmarks.gpu_check.device import matmul_flops_per_s, nominal_flops_per_s
from benchmarks.gpu_check.parts import Row, Size
from benchmarks.made_up_episodes import made_up_episodes
from benchmarks.measures import alternating, peak_bytes
from benchmarks.qwen3_shapes import SHAPES, untrained
from envs.packing import PackedSequence, SequenceBatch, by_length, collate, pack
from modules.functional.losses import clipped_policy_loss
from modules.sequence_logprobs import logprobs_and_entropy


def updates(size: Size) -> Iterator[Row]:
    """Of each shape seconds, rate of operations, its shares of the data sheet's and of a matmul's, and memory.

    `peak_gb` is what an update takes beyond weights and the optimiser's state, gradients included.
    """
    matmul, nominal = matmul_flops_per_s(size), nominal_flops_per_s(size)
    for name in size.of(("0.6B", "1.7B"), ("tiny",)):
        shape, turns = SHAPES[name], size.of(8, 1)
        model = untrained(shape, device=size.device).model.train()
        episodes = made_up_episodes(size.of(16, 2), shape.vocabulary, turns=(turns, turns), sampled=60, observed=190)
        packed = [pack(sequence) for episode in episodes for sequence in episode.sequences()]
        sequences = [_on_policy(sequence, model, number) for number, sequence in enumerate(packed)]
        parts = by_length(sequences, length=len, tokens=size.of(8320, 400))
        batches = [move_data_to_device(collate(part), model.device) for part in parts]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

        def run(model=model, batches=batches, optimizer=optimizer) -> None:
            gradients(model, batches)
            optimizer.step()

        seconds = alternating({name: run}, repeats=size.of(2, 1))[name]["seconds"]
        model.zero_grad()  # so that gradients count as the update's memory
        trained = sum(int(sequence.loss_mask_T.sum()) for sequence in sequences)
        rate = shape.update_flops([len(sequence) for sequence in sequences], trained) / seconds
        row: Row = {"shape": name, "tokens": sum(map(len, sequences)), "trained": trained, "seconds": seconds}
        row |= {"tflops_per_s": rate / 1e12, "mfu": nominal and round(rate / nominal, 3)}
        yield row | {"of_matmul": round(rate / matmul, 3), "peak_gb": peak_bytes(run, size.device) / 1e9}


def gradients(model: PreTrainedModel, batches: Sequence[SequenceBatch]) -> None:
    """Forward and backward passes of an update."""
    model.zero_grad()
    count = float(sum(int(batch.loss_mask_BT.sum()) for batch in batches))
    for batch in batches:
        logps_BT, _ = logprobs_and_entropy(model, batch)
        old_BT, advantages_BT, mask_BT = batch.logps_BT, batch.channels["advantages"], batch.loss_mask_BT
        loss = clipped_policy_loss(
            logps_BT, old_BT, advantages_BT, mask_BT, clip_low=0.2, clip_high=0.2, denominator=count
        )
        loss.backward()


def _on_policy(sequence: PackedSequence, model: PreTrainedModel, number: int) -> PackedSequence:
    """The sequence with the log-probs of the model itself and an advantage, so that nothing is clipped."""
    with torch.no_grad():
        logps_BT, _ = logprobs_and_entropy(model, move_data_to_device(collate([sequence]), model.device))
    sequence.logps_T = logps_BT[0].cpu()
    sequence.channels = {"advantages": torch.where(sequence.loss_mask_T, float(number % 5 - 2), 0.0)}
    return sequence
