"""Log-probabilities straight from hidden states: literal numbers, gradients, chunks, and the memory that they save."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from modules.functional import linear_logprobs as unit
from modules.functional.linear_logprobs import linear_logprobs
from modules.functional.logprobs import changed_logits, token_entropy, token_logprobs

# Hidden states that are the logits themselves: the weight is the identity.
LOGITS = torch.tensor([[math.log(1.0), math.log(3.0)], [math.log(2.0), math.log(2.0)]])
IDENTITY = torch.eye(2)


def drawn(
    tokens: int, width: int, entries: int, dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn((tokens, width), generator=generator).to(dtype)
    weight = (torch.randn((entries, width), generator=generator) * scale).to(dtype)
    ids = torch.randint(entries, (tokens,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), ids


def whole(hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """The same from whole logits."""
    logits = (hidden @ weight.T)[None]
    return token_logprobs(logits, ids[None], temperature)[0], token_entropy(logits, temperature)[0]


def test_literal_probabilities_and_entropies() -> None:
    logps, entropy = linear_logprobs(LOGITS, IDENTITY, torch.tensor([1, 0]))
    assert logps.tolist() == [pytest.approx(math.log(0.75)), pytest.approx(math.log(0.5))]
    expected = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert entropy.tolist() == [pytest.approx(expected), pytest.approx(math.log(2))]


def test_temperature_divides_the_logits() -> None:
    logps, _ = linear_logprobs(LOGITS, IDENTITY, torch.tensor([1, 0]), temperature=0.5)
    assert logps[0].item() == pytest.approx(math.log(9 / 10))


def test_a_literal_gradient() -> None:
    hidden = LOGITS[:1].clone().requires_grad_()
    linear_logprobs(hidden, IDENTITY, torch.tensor([1]))[0].sum().backward()
    assert hidden.grad is not None
    assert hidden.grad[0].tolist() == [pytest.approx(-0.25), pytest.approx(0.25)]  # onehot − p


@pytest.mark.parametrize("least", [1, 1000])  # chunks of one token, or a single chunk
@pytest.mark.parametrize("parts", [(1.0, 0.0), (0.0, 1.0), (0.7, -1.3)])  # of the loss: log-probs, entropies
def test_values_and_gradients_are_those_of_whole_logits(
    monkeypatch: pytest.MonkeyPatch, least: int, parts: tuple[float, float]
) -> None:
    monkeypatch.setattr(unit, "_LEAST", least)
    monkeypatch.setattr(unit, "_TOKENS", 1)
    hidden, weight, ids = drawn(13, 5, 40)
    weigh = torch.randn(13, generator=torch.Generator().manual_seed(1))
    found = []
    for ask in (linear_logprobs, whole):
        hidden.grad = weight.grad = None
        logps, entropy = ask(hidden, weight, ids, 0.8)
        used = [share * (value * weigh).sum() for share, value in zip(parts, (logps, entropy), strict=True) if share]
        torch.stack(used).sum().backward()
        found.append((logps.detach(), entropy.detach(), hidden.grad, weight.grad))
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
        assert theirs.abs().max() > 0.1


def test_a_sure_distribution_has_no_entropy_and_no_nan() -> None:
    hidden = torch.tensor([[1e4, 0.0]]).requires_grad_()
    logps, entropy = linear_logprobs(hidden, IDENTITY, torch.tensor([0]))
    (logps + entropy).sum().backward()
    assert (logps.item(), entropy.item()) == (0.0, 0.0)
    assert hidden.grad is not None
    assert hidden.grad.abs().max() == 0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_bfloat16_is_multiplied_as_it_is_and_summed_in_float32(device: str) -> None:
    """Not rounded in between, unless a CPU rounds the results of its fast products."""
    hidden, weight, ids = (tensor.detach().to(device) for tensor in drawn(40, 16, 5000, torch.bfloat16, scale=5.0))
    hidden.requires_grad_()
    logps, entropy = linear_logprobs(hidden, weight, ids)
    rounded = device == "cpu" and unit.has_fast_bfloat16(hidden.device)
    expected = whole(hidden, weight, ids) if rounded else whole(hidden.float(), weight.float(), ids)
    assert logps.dtype == entropy.dtype == torch.float32
    assert torch.allclose(logps, expected[0], atol=1e-5)
    assert torch.allclose(entropy, expected[1], atol=1e-4)
    logps.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16


def test_the_gradient_of_the_weight_is_summed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand equal shares, a token a chunk: in bfloat16 a sum stands still once a share is a 256th of it."""
    monkeypatch.setattr(unit, "_LEAST", 1)
    monkeypatch.setattr(unit, "_TOKENS", 1)
    monkeypatch.setattr(unit, "_CHUNKS", 1000)
    hidden = torch.ones(1000, 4, dtype=torch.bfloat16)
    weight = torch.zeros(8, 4, dtype=torch.bfloat16, requires_grad=True)
    linear_logprobs(hidden, weight, torch.zeros(1000, dtype=torch.long))[0].sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.bfloat16
    expected = torch.tensor([875.0] + 7 * [-125.0])
    assert torch.allclose(weight.grad[:, 0].float(), expected, rtol=2**-8)


def test_autocast_multiplies_in_its_own_type_and_gradients_keep_the_parameters() -> None:
    hidden, weight, ids = drawn(40, 16, 500)
    with torch.autocast("cpu", torch.bfloat16):
        logps, _ = linear_logprobs(hidden, weight, ids)
    logps.sum().backward()
    assert torch.equal(logps, linear_logprobs(hidden.bfloat16(), weight.bfloat16(), ids)[0])
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("tokens", "entries", "sizes"),
    [
        (2000, 862, [1216, 784]),  # 2^20 logits
        (700, 16_384, [256, 256, 188]),  # 256 tokens
        (500, 49_152, [170, 170, 160]),  # 2^23 logits
        (8192, 49_152, 16 * [512]),  # a 16th
        (50_000, 49_152, 18 * [2730] + [860]),  # 2^27 logits at most
        (2, 2**28, [1, 1]),
    ],
)
def test_tokens_of_a_chunk(tokens: int, entries: int, sizes: list[int]) -> None:
    assert [len(range(tokens)[part]) for part in unit._chunks(tokens, entries)] == sizes


def test_no_token_gives_nothing_and_gradients_of_0() -> None:
    hidden, weight, ids = drawn(0, 4, 10)
    logps, entropy = linear_logprobs(hidden, weight, ids)
    (logps.sum() + entropy.sum()).backward()
    assert len(logps) == len(entropy) == 0
    assert weight.grad is not None
    assert weight.grad.abs().max() == 0


def test_a_frozen_weight_gets_no_gradient() -> None:
    hidden, weight, ids = drawn(3, 4, 10)
    weight.requires_grad_(False)
    linear_logprobs(hidden, weight, ids)[0].sum().backward()
    assert weight.grad is None
    assert hidden.grad is not None


def test_other_ids_than_hidden_states_are_refused() -> None:
    with pytest.raises(ValueError, match="do not predict"):
        linear_logprobs(LOGITS, IDENTITY, torch.tensor([1]))


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes of tensors that were allocated at once by `run`, beyond those before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    assert profile.profiler is not None
    results = profile.profiler.kineto_results
    assert results is not None
    events: Any = results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak


def test_the_peak_is_what_was_alive_at_once() -> None:
    def two_together() -> None:
        first, second = torch.zeros(2**20), torch.zeros(2**19)
        del first, second
        torch.zeros(2**20)

    assert peak_bytes(two_together) == 4 * (2**20 + 2**19)


VOCABULARY = 151_936  # of Qwen3


@pytest.mark.parametrize("entropy_weight", [0.0, 0.1])
def test_the_peak_is_a_quarter_of_the_whole_logits_at_the_vocabulary_of_qwen3(entropy_weight: float) -> None:
    tokens = 512
    hidden, weight, ids = drawn(tokens, 8, VOCABULARY, scale=0.1)

    def step(ask) -> None:
        logps, entropy = ask(hidden, weight, ids)
        (logps.sum() + entropy_weight * entropy.sum() if entropy_weight else logps.sum()).backward()

    logits = tokens * VOCABULARY * 4
    assert peak_bytes(lambda: step(linear_logprobs)) <= logits / 4
    assert peak_bytes(lambda: step(whole)) >= logits * 2, "which whole logits and their gradient exceed"


def test_a_soft_cap_and_a_scale_of_literal_logits() -> None:
    logits = torch.tensor([[0.0, math.atanh(0.5) * 2]])  # capped at 2, the second is 1
    logps, _ = linear_logprobs(logits, IDENTITY, torch.tensor([1]), cap=2.0)
    assert logps.item() == pytest.approx(1 - math.log(1 + math.e))
    logps, _ = linear_logprobs(LOGITS[:1], IDENTITY, torch.tensor([1]), scale=2.0)
    assert logps.item() == pytest.approx(math.log(9 / 10))


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("parts", [(1.0, 0.0), (0.7, -1.3)])
def test_gradients_after_a_soft_cap_and_a_scale_are_those_of_whole_logits(
    monkeypatch: pytest.MonkeyPatch, cap: float | None, parts: tuple[float, float]
) -> None:
    monkeypatch.setattr(unit, "_LEAST", 1)
    monkeypatch.setattr(unit, "_TOKENS", 1)
    found = []
    for way in ("ours", "whole"):
        hidden, weight, ids = drawn(7, 5, 11)
        if way == "ours":
            logps, entropy = linear_logprobs(hidden, weight, ids, 0.7, scale=0.4, cap=cap)
        else:
            logits = changed_logits((hidden @ weight.T)[None], 0.4, cap)
            logps, entropy = token_logprobs(logits, ids[None], 0.7)[0], token_entropy(logits, 0.7)[0]
        (parts[0] * logps.sum() + parts[1] * entropy.sum()).backward()
        assert hidden.grad is not None
        assert weight.grad is not None
        found.append((logps, entropy, hidden.grad, weight.grad))
    for ours, expected in zip(*found, strict=True):
        assert torch.allclose(ours, expected, atol=1e-5)
    assert found[1][3].abs().max() > 0.1
