"""Model FLOPs utilisation (MFU) of an update of whole bfloat16 weights of Qwen3's shapes.

An update is the clipped loss over made-up episodes, in passes under a token budget, and a step of AdamW. Operations are
the model's own (`Shape.update_flops`): nothing recomputed, attention under its causal mask, logits of sampled tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import torch
from lightning.pytorch.utilities import move_data_to_device
from transformers import PreTrainedModel

from benchmarks.gpu_check.device import matmul_flops_per_s, nominal_flops_per_s
from benchmarks.gpu_check.parts import Row, Size
from benchmarks.iterations import peaks
from benchmarks.measures import Stopwatch
from benchmarks.qwen3_shapes import SHAPES, untrained
from envs.packing import PackedSequence, SequenceBatch, by_length, collate
from modules.functional.losses import clipped_policy_loss
from modules.sequence_logprobs import logprobs_and_entropy


def updates(size: Size) -> Iterator[Row]:
    """Of each shape seconds, rate of operations, its shares of the data sheet's and of a matmul's, and peak memory."""
    matmul, nominal = matmul_flops_per_s(size), nominal_flops_per_s(size)
    for name in size.of(("0.6B", "1.7B"), ("tiny",)):
        shape = SHAPES[name]
        model = untrained(shape, device=size.device).model.train()
        sequences = [made_up(number, size.of(8, 1), model, shape.vocabulary) for number in range(size.of(16, 2))]
        parts = by_length(sequences, length=len, tokens=size.of(8320, 400))
        batches = [move_data_to_device(collate(part), model.device) for part in parts]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

        taken: list[float] = []
        for _ in range(size.of(3, 2)):
            watch = Stopwatch()
            gradients(model, batches)
            optimizer.step()
            taken.append(watch.read()["seconds"])
        seconds = statistics.median(taken[1:])  # the first one warms up
        trained = sum(int(sequence.loss_mask_T.sum()) for sequence in sequences)
        rate = shape.update_flops([len(sequence) for sequence in sequences], trained) / seconds
        row: Row = {"shape": name, "tokens": sum(map(len, sequences)), "trained": trained, "seconds": seconds}
        row |= {"tflops_per_s": rate / 1e12, "mfu": nominal and round(rate / nominal, 3)}
        yield row | {"of_matmul": round(rate / matmul, 3)} | peaks()


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


def made_up(number: int, turns: int, model: PreTrainedModel, vocabulary: int) -> PackedSequence:
    """An episode of random tokens: a prompt of 60, then turns of 60 sampled and 190 read ones.

    It has the log-probs of the model itself, so that nothing is clipped, and an advantage.
    """
    mask_T = torch.tensor(60 * [False] + turns * (60 * [True] + 190 * [False]))
    ids_T = torch.randint(vocabulary, mask_T.shape, generator=torch.Generator().manual_seed(number))
    sequence = PackedSequence(ids_T, mask_T, torch.where(mask_T, 0, -1), torch.zeros(len(mask_T)))
    with torch.no_grad():
        logps_BT, _ = logprobs_and_entropy(model, move_data_to_device(collate([sequence]), model.device))
    sequence.logps_T = logps_BT[0].cpu()
    sequence.channels = {"advantages": torch.where(mask_T, float(number % 5 - 2), 0.0)}
    return sequence
