from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.functional.token_choice import choose_tokens, gumbel_noise, keep_top_p

SEEDS = torch.tensor([1, 2, 2**62 + 5])


def test_noise_depends_on_seed_position_and_entry_alone() -> None:
    noise = gumbel_noise(SEEDS, torch.tensor([0, 0, 7]), 50)
    alone = gumbel_noise(SEEDS[2:], torch.tensor([7]), 90)
    assert torch.equal(noise[2], alone[0, :50])
    assert not torch.equal(noise[0], noise[1])
    assert not torch.equal(noise[2], gumbel_noise(SEEDS[2:], torch.tensor([8]), 50)[0])


def test_noise_never_changes_between_versions() -> None:
    noise = gumbel_noise(torch.tensor([123456789]), torch.tensor([3]), 3)
    assert noise[0].tolist() == pytest.approx([-0.4018846, 0.0404818, -0.6595986], abs=1e-6)


def test_noise_is_gumbel_distributed() -> None:
    noise = gumbel_noise(torch.arange(400), torch.zeros(400, dtype=torch.long), 1000).double()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.02)
    for quantile, expected in ((0.1, -0.8340), (0.5, 0.3665), (0.9, 2.2504), (0.999, 6.9073)):
        below = (noise < expected).double().mean().item()
        assert below == pytest.approx(quantile, abs=0.002)


def test_noise_of_neighbours_is_uncorrelated() -> None:
    count = 200_000
    by_seed = gumbel_noise(torch.arange(count), torch.zeros(count, dtype=torch.long), 8)
    by_position = gumbel_noise(torch.zeros(count, dtype=torch.long), torch.arange(count), 8)
    for noise in (by_seed, by_position, by_seed.T, by_position.T):
        a, b = noise[:-1].flatten(), noise[1:].flatten()
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1].item()) < 4 / len(a) ** 0.5


def test_sampling_follows_the_softmax_at_the_temperature() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]])).expand(20000, 3)
    seeds, positions = torch.arange(20000), torch.zeros(20000, dtype=torch.long)
    ids, logps = choose_tokens(logits, seeds, positions, temperature=1.0)
    shares = torch.bincount(ids, minlength=3) / 20000
    assert shares.tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.012)
    sharp, logps = choose_tokens(logits, seeds, positions, temperature=0.5)
    assert (sharp == 0).double().mean().item() == pytest.approx(0.25 / 0.38, abs=0.012)
    assert logps[sharp == 0][0].item() == pytest.approx(math.log(0.25 / 0.38), abs=1e-5)


def test_greedy_takes_the_best_and_gives_its_probability_at_temperature_one() -> None:
    ids, logps = choose_tokens(
        torch.log(torch.tensor([[1.0, 3.0]])), torch.tensor([9]), torch.tensor([0]), temperature=0.0
    )
    assert (ids.item(), logps.item()) == (1, pytest.approx(math.log(0.75)))


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    logps = torch.log(torch.tensor([[0.5, 0.1, 0.3, 0.1]]))
    kept = [torch.isfinite(keep_top_p(logps, p))[0].tolist() for p in (0.4, 0.6, 0.85, 1.0)]
    assert kept == [[True, False, False, False], [True, False, True, False], [True, True, True, False], [True] * 4]


def test_log_probabilities_are_those_before_top_p() -> None:
    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]]))
    ids, logps = choose_tokens(logits, torch.tensor([0]), torch.tensor([0]), temperature=1.0, top_p=0.5)
    assert (ids.item(), logps.item()) == (0, pytest.approx(math.log(0.6)))


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.floats(0.05, 1.0))
def test_a_chosen_token_is_always_inside_the_nucleus(seed: int, position: int, top_p: float) -> None:
    logits = torch.linspace(-3, 3, 40)[None]
    ids, _ = choose_tokens(logits, torch.tensor([seed]), torch.tensor([position]), temperature=1.0, top_p=top_p)
    assert torch.isfinite(keep_top_p(torch.log_softmax(logits, -1), top_p))[0, ids.item()]


def test_the_noise_of_the_largest_hash_is_finite() -> None:
    noise = gumbel_noise(torch.tensor([910686]), torch.tensor([0]), 50_000)
    assert torch.isfinite(noise).all()
    assert noise.max().item() < 17
    logits = torch.full((1, 50_000), -20.0)
    logits[0, 5] = 20.0
    assert choose_tokens(logits, torch.tensor([910686]), torch.tensor([0]), temperature=1.0)[0].item() == 5
