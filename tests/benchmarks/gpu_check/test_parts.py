"""The parts of the GPU check at their tiny size, on a CPU; what they derive, by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.equal_turns import Work
from benchmarks.gpu_check.decoding import decoded, limit
from benchmarks.gpu_check.parts import PARTS, Row, Size, load
from benchmarks.qwen3_shapes import SHAPES, Shape, untrained
from modules.decoder.fused_decoder import FusedDecoder
from modules.samplers.in_process import InProcessSampler
from tests.modules.samplers.vllm.test_command import SERVES

TINY = Size(tiny=True)


def rows(name: str) -> list[Row]:
    return list(load(PARTS[name].function)(TINY))


def test_the_device_has_limits() -> None:
    [row] = rows("device")
    assert row["gb_per_s"] > 0
    assert row["matmul_tflops_per_s"] > 0


def test_attention_is_compared_with_float64() -> None:
    assert [row["right"] for row in rows("kernels")] == [True]


def test_a_kernel_that_reads_too_far_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(columns_N: Any, width: int, dtype: Any) -> Any:
        return columns_N.new_zeros((len(columns_N), width), dtype=dtype)

    monkeypatch.setattr("modules.decoder.row_attention.up_to", everything)
    assert [row["right"] for row in rows("kernels")] == [False]


def test_new_lengths_are_timed_with_cudnn_and_without() -> None:
    assert [(row["cuDNN"], row["pass"][:8]) for row in rows("new shapes")] == [
        ("on", "training"), ("on", "sampling"), ("off", "training"), ("off", "sampling"),
    ]  # fmt: skip


def test_decoding_is_measured_against_its_limit() -> None:
    one, two = rows("decoding")
    assert 0 < one["tokens"] <= 23
    assert two["tokens_per_s"] == pytest.approx(two["tokens"] / two["seconds"])
    steps = two["gb_per_s"] * 1e9 / SHAPES["tiny"].bytes_a_step([16 + 12] * 2)
    assert two["limit_tokens_per_s"] == pytest.approx(2 * steps)
    assert two["share"] == pytest.approx(two["tokens_per_s"] / two["limit_tokens_per_s"], abs=6e-4)
    assert [row["rows"] for row in rows("decoding 8B")] == [2]


def test_a_limit_by_hand() -> None:
    hand = Shape(4, 8, layers=1, heads=2, kv_heads=1, head_dim=2, vocabulary=10, tied=False)
    assert limit(hand, Work(10, 1, 1, 4, 1, 3), 1000.0) == 10 * 1000 / hand.bytes_a_step([5] * 10)


def test_weights_are_prepared_once_for_all_measured_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every run would measure how they are laid out and merged."""
    prepared, begin = list[object](), FusedDecoder.__init__

    def counted(self: FusedDecoder, model: Any) -> None:
        prepared.append(self)
        begin(self, model)

    monkeypatch.setattr(FusedDecoder, "__init__", counted)
    policy = untrained(SHAPES["tiny"], dtype="float32")
    decoded(InProcessSampler(policy, temperature=1.0), policy, Work(2, 1, 1, 4, 1, 8), repeats=2)
    assert len(prepared) == 1


def test_sampling_with_adapters_has_the_log_probs_of_training() -> None:
    plain, lora = rows("adapters")
    assert [plain["adapters"], lora["adapters"]] == ["none", "LoRA, rank 16"]
    assert 0 < max(plain["mean_logp_gap"], lora["mean_logp_gap"]) < 0.01


def test_an_update_is_measured_against_a_matmul() -> None:
    [row] = rows("update")
    assert (row["tokens"], row["trained"]) == (2 * (60 + 60 + 190), 2 * 60)
    rate = SHAPES["tiny"].update_flops([310] * 2, 120) / row["seconds"]
    assert row["tflops_per_s"] == pytest.approx(rate / 1e12)
    assert row["mfu"] is None


def test_an_iteration_is_measured_by_part() -> None:
    found = rows("iteration")
    assert [row["part"] for row in found] == ["rollout", "scoring", "update"]
    assert all(row["seconds"] > 0 for row in found)
    assert found[0]["peak_gb"] <= found[1]["peak_gb"] <= found[2]["peak_gb"]


@pytest.mark.slow
def test_vllm_is_measured_beside_the_sampler_in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here with a stand-in for vLLM, said to be built for a GPU."""
    module = tmp_path / "vllm" / "entrypoints" / "openai" / "api_server.py"
    module.parent.mkdir(parents=True)
    module.write_text(SERVES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("VLLM_PYTHON", sys.executable)
    for user in ("benchmarks.gpu_check.engine", "modules.samplers.vllm.engine"):
        monkeypatch.setattr(f"{user}.on_cpu", lambda python: False)
    in_process, through, *steps = rows("vLLM")
    assert (in_process["sampler"], through["sampler"]) == ("in process", "vLLM of an unknown version")
    for row in (in_process, through):
        assert 0 < row["tokens"] <= 2 * 23
        assert row["tokens_per_s"] == pytest.approx(row["tokens"] / row["seconds"])
    assert [row["step"] for row in steps] == ["adapters handed over and proved", "sleep", "wake"]
    assert all(row["seconds"] > 0 for row in steps)


def test_without_vllm_its_part_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_PYTHON", raising=False)
    monkeypatch.setattr("benchmarks.gpu_check.engine.ENGINE_PYTHON", tmp_path / "python")
    assert rows("vLLM") == [{"sampler": "vLLM", "skipped": "vLLM is not installed"}]
