"""Parameters, bytes and operations of Qwen3's shapes, by hand and by PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.qwen3_shapes import SHAPES, Shape, untrained

HAND = Shape(4, 8, layers=1, heads=2, kv_heads=1, head_dim=2, vocabulary=10, tied=False)


def test_parameters_are_those_of_the_published_models() -> None:
    assert SHAPES["0.6B"].parameters == 596_049_920
    assert SHAPES["1.7B"].parameters == 1_720_574_976
    assert SHAPES["8B"].parameters == 8_190_735_360
    for shape in (SHAPES["tiny"], HAND):
        model = untrained(shape, dtype="float32").model
        assert sum(weight.numel() for weight in model.parameters()) == shape.parameters


def test_bytes_and_operations_by_hand() -> None:
    # attention 4·4 + 2·(4·2) + 4·4 = 48, feed-forward 3·4·8 = 96, norms 2·4 + 2·2 = 12, last norm 4
    assert HAND.body == 48 + 96 + 12 + 4
    assert HAND.parameters == 160 + 2 * 40
    assert HAND.cache_bytes(5) == 2 * 1 * 1 * 2 * 5 * 2
    assert HAND.bytes_a_step([5, 7]) == 2 * (160 + 40) + 96  # one of the two tables is only looked up
    # two sequences of 3 and 2 tokens: 6 + 3 pairs, each 4 operations a head and number
    assert HAND.update_flops([3, 2], 4) == 3 * (2 * 160 * 5 + 2 * 40 * 4 + 4 * 2 * 2 * 9)


def test_operations_are_those_that_pytorch_counts() -> None:
    shape, tokens = SHAPES["tiny"], 8
    model = untrained(shape, dtype="float32").model
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(tokens)[None])
    counts = counter.get_flop_counts()["Global"]
    linear = sum(count for operation, count in counts.items() if "mm" in str(operation))
    without_attention = shape.update_flops([tokens], tokens) - shape.update_flops([tokens], 0) + 6 * shape.body * tokens
    assert without_attention / 3 == pytest.approx(linear, rel=0.01)  # the norms' weights multiply no matrix
