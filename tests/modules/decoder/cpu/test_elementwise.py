"""Norms, gate and rotary positions: compiled and by PyTorch they are the same, to the rounding of float32."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from modules.decoder.cpu import elementwise
from modules.decoder.cpu.elementwise import gated, normed, placed

EPS = 1e-3


@pytest.fixture(autouse=True, scope="module")
def threads() -> None:
    """As the decoder does before it computes."""
    elementwise.share_threads()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def norm_by_hand(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def by_hand(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions: each number of the first half and its partner of the second are turned, each by its angle."""
    cos, sin = angles[:, None].cos().double(), angles[:, None].sin().double()
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def test_a_norm_by_hand() -> None:
    x = torch.zeros(2, 16)
    x[0, :4] = 2.0  # mean square 1
    weight = torch.arange(16.0)
    assert normed(x, weight, 0.0)[0].tolist() == pytest.approx([0, 2, 4, 6] + 12 * [0])
    assert normed(x, weight, 3.0)[0].tolist() == pytest.approx([0, 1, 2, 3] + 12 * [0])


def test_a_gate_by_hand() -> None:
    gate_up = torch.zeros(1, 32)
    gate_up[0, :4] = torch.tensor([0.0, 2.0, -2.0, -200.0])
    gate_up[0, 16:20] = torch.tensor([5.0, 1.0, 3.0, 1.0])
    assert gated(gate_up)[0, :4].tolist() == pytest.approx([0, 1.7615942, -0.7152175, 0])


def test_a_rotation_by_hand() -> None:
    """A quarter turn puts the second half, negative, into the first."""
    qk = torch.arange(1.0, 17.0).view(1, 1, 16)
    zero, one = torch.zeros(1, 16), torch.ones(1, 16)
    assert placed(qk, None, zero, one, EPS)[0, 0].tolist() == [*range(-9, -17, -1), *range(1, 9)]
    assert torch.equal(placed(qk, None, one, zero, EPS), qk)


@pytest.mark.parametrize("width", [16, 48, 640])
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_compiled_and_by_pytorch_it_is_the_same(rows: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    angles = numbers(rows, width, seed=1)
    qk = numbers(rows, 5, width)[:, 1:4]  # not contiguous
    inputs = numbers(rows, width), numbers(width, seed=2), numbers(rows, 2 * width), numbers(3, width, seed=3)

    def computed() -> list[Tensor]:
        x, weight, gate_up, norms = inputs
        turned = [placed(qk, some, angles.cos(), angles.sin(), EPS) for some in (norms, None)]
        return [normed(x, weight, EPS), gated(gate_up.clone()), *turned]

    assert all(elementwise._compiles(tensor) for tensor in (inputs[0], inputs[2], qk))
    compiled = computed()
    monkeypatch.setattr(elementwise, "_compiles", lambda _: False)
    x, weight, gate_up, norms = (tensor.double() for tensor in inputs)
    gate, up = gate_up.chunk(2, dim=-1)
    turned = [by_hand(some, angles) for some in (norm_by_hand(qk.double(), norms), qk.double())]
    exact = [norm_by_hand(x, weight), F.silu(gate) * up, *turned]
    for ours, pytorchs, expected in zip(compiled, computed(), exact, strict=True):
        assert ours.shape == expected.shape
        assert expected.std() > 0.1
        assert (ours - expected).abs().max() < 2 * (pytorchs - expected).abs().max() + 1e-6


def test_a_gate_follows_silu_to_both_ends() -> None:
    gate = torch.cat([torch.linspace(-120, 120, 4001), torch.zeros(15)])[None]
    expected = F.silu(gate.double())
    assert torch.allclose(gated(torch.cat([gate, torch.ones_like(gate)], -1)).double(), expected, rtol=3e-7, atol=1e-35)


def test_nan_stays_in_its_row() -> None:
    x = torch.ones(3, 16)
    x[1, 5] = float("nan")
    assert normed(x, torch.ones(16), EPS).isnan().any(-1).tolist() == [False, True, False]
    assert gated(torch.cat([x, x], -1)).isnan().any(-1).tolist() == [False, True, False]
    assert placed(x[:, None], None, x * 0 + 1, x * 0, EPS).isnan().any(-1).flatten().tolist() == [False, True, False]


_STARTED = """
import torch
torch.set_num_threads(1)
from modules.decoder.cpu.elementwise import share_threads
share_threads()
assert torch.get_num_threads() == 1, torch.get_num_threads()
"""


def test_starting_numba_leaves_the_threads_of_pytorch_alone() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    root = Path(__file__).parents[4]
    subprocess.run([sys.executable, "-c", _STARTED], cwd=root, env=environment | {"PYTHONPATH": str(root)}, check=True)


@pytest.fixture
def short_default() -> Iterator[None]:
    """As in Lightning's `bf16-true`, where new tensors are bfloat16 unless they are told."""
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("short_default")
def test_another_default_type_changes_nothing() -> None:
    x, one = numbers(3, 16).float(), torch.ones(3, 16, dtype=torch.float32)
    made = [normed(x, one[0], EPS), gated(torch.cat([x, x], -1)), placed(x[:, None], one[:1], one, 0 * one, EPS)]
    assert [tensor.dtype for tensor in made] == 3 * [torch.float32]
    assert torch.allclose(made[0], norm_by_hand(x, one[0]), atol=1e-6)
