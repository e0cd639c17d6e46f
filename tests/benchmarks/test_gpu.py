"""The benchmarks of a GPU: their arithmetic by hand, and each command at a tiny size on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import gpu_decode, gpu_memory, gpu_update
from benchmarks.equal_turns import Work
from benchmarks.gpu_decode import limit
from benchmarks.qwen3_shapes import SHAPES, Shape, untrained
from modules.decoder.fused_decoder import FusedDecoder
from modules.samplers.in_process import InProcessSampler

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
    # 10 rows at 1,000 bytes a second
    work = Work(10, 1, 1, 4, 1, 3)
    assert limit(HAND, work, 1000.0, 2) == 10 * 1000 / HAND.bytes_a_step([5] * 10)


def test_operations_are_those_that_pytorch_counts() -> None:
    shape, tokens = SHAPES["tiny"], 8
    model = untrained(shape, dtype="float32").model
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(tokens)[None])
    counts = counter.get_flop_counts()["Global"]
    linear = sum(count for operation, count in counts.items() if "mm" in str(operation))
    without_attention = shape.update_flops([tokens], tokens) - shape.update_flops([tokens], 0) + 6 * shape.body * tokens
    assert without_attention / 3 == pytest.approx(linear, rel=0.01)  # the norms' weights multiply no matrix


def _rows(main: Any, folder: Path, *arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    path = folder / "out.json"
    main([*arguments, "--device", "cpu", "--json", str(path)])
    whole = json.loads(path.read_text())
    return whole, whole["rows"]


def test_decoding_is_measured_beside_its_limit(tmp_path: Path) -> None:
    arguments = [
        "--shapes",
        "tiny",
        "--rows",
        "2",
        "--prompt",
        "16",
        "--tokens",
        "24",
        "--repeats",
        "1",
        "--dtype",
        "float32",
    ]
    whole, [row] = _rows(gpu_decode.main, tmp_path, *arguments)
    assert 0 < row["tokens"] <= 2 * 23
    assert row["tokens_per_s"] == pytest.approx(row["tokens"] / row["seconds"])
    context = 16 + 12
    steps = whole["gb_per_s"] * 1e9 / SHAPES["tiny"].bytes_a_step([context] * 2, 4)
    assert row["limit_tokens_per_s"] == pytest.approx(2 * steps)
    assert row["share"] == pytest.approx(row["tokens_per_s"] / row["limit_tokens_per_s"], abs=6e-4)


def test_weights_are_prepared_once_for_all_measured_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every run would measure how they are laid out and merged."""
    prepared, begin = list[object](), FusedDecoder.__init__

    def counted(self: FusedDecoder, model: Any) -> None:
        prepared.append(self)
        begin(self, model)

    monkeypatch.setattr(FusedDecoder, "__init__", counted)
    policy = untrained(SHAPES["tiny"], dtype="float32")
    gpu_decode.decoding(InProcessSampler(policy, temperature=1.0), policy, Work(2, 1, 1, 4, 1, 8), repeats=2)
    assert len(prepared) == 1


def test_an_update_is_measured_beside_a_product_of_matrices(tmp_path: Path) -> None:
    arguments = ["--shapes", "tiny", "--episodes", "2", "--turns", "1", "--tokens", "400", "--repeats", "1"]
    whole, [row] = _rows(gpu_update.main, tmp_path, *arguments)
    assert (row["tokens"], row["trained"]) == (2 * (60 + 60 + 190), 2 * 60)
    rate = SHAPES["tiny"].update_flops([310] * 2, 120) / row["seconds"]
    assert row["tflops_per_s"] == pytest.approx(rate / 1e12)
    assert row["of_matmul"] == pytest.approx(rate / 1e12 / whole["matmul_tflops_per_s"], abs=6e-4)
    assert row["mfu"] is None


def test_memory_is_measured_by_part(tmp_path: Path) -> None:
    arguments = [
        "--shape",
        "tiny",
        "--questions",
        "1",
        "--turns",
        "2",
        "--turn-tokens",
        "4",
        "--observation",
        "8",
        "--rows",
        "4",
    ]
    _, rows = _rows(gpu_memory.main, tmp_path, *arguments)
    assert [row["part"] for row in rows] == ["rollout", "scoring", "update"]
    assert all(row["seconds"] > 0 for row in rows)
    assert rows[0]["peak_gb"] <= rows[1]["peak_gb"] <= rows[2]["peak_gb"]


@pytest.mark.gpu
def test_decoding_on_a_gpu_stays_below_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    gpu_decode.main(["--shapes", "0.6B", "--rows", "16", "--tokens", "32", "--repeats", "1", "--json", str(path)])
    [row] = json.loads(path.read_text())["rows"]
    assert 0 < row["share"] < 1
