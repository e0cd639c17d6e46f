from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st
from torch import Tensor
from transformers import TopPLogitsWarper

from modules.functional.token_choice import RowSettings, choose_tokens, draw, draw_top_p, more_probable, uniforms

SEEDS = torch.tensor([1, 2, 2**62 + 5])
PLACES = [(3, 0), (4, 0), (3, 1)]
EXPECTED = [0.2189421559, 0.0308508406, 0.9443671576]


def padded(shares: list[float]) -> Tensor:
    """One row of weights, filled up with zeros to two blocks of 256."""
    return torch.tensor([shares + [0.0] * (512 - len(shares))])


def nucleus(weights_V: Tensor, top_p: float) -> set[int]:
    """The reference: sort, add up, and take entries until the mass is reached."""
    order = sorted(range(len(weights_V)), key=lambda i: (-weights_V[i].item(), i))
    kept, mass, total = set[int](), 0.0, weights_V.double().sum().item()
    for index in order:
        if mass >= top_p * total:
            break
        kept.add(index)
        mass += weights_V[index].item()
    return kept


def test_a_number_depends_on_seed_position_and_attempt_alone() -> None:
    numbers = uniforms(SEEDS, torch.tensor([0, 0, 7]))
    assert torch.equal(numbers[2:], uniforms(SEEDS[2:], torch.tensor([7])))
    others = [uniforms(SEEDS[:1], torch.tensor([0]), 1), uniforms(SEEDS[:1], torch.tensor([1])), numbers[1:2]]
    assert len({number.item() for number in [numbers[:1], *others]}) == 4


def test_numbers_never_change_between_versions() -> None:
    numbers = [uniforms(torch.tensor([123456789]), torch.tensor([position]), attempt) for position, attempt in PLACES]
    assert [number.item() for number in numbers] == pytest.approx(EXPECTED, abs=1e-9)
    assert [number.item() * 2**32 % 1 for number in numbers] == [0.5] * 3, "so none is 0 or 1"


def test_numbers_are_spread_evenly_and_neighbours_are_uncorrelated() -> None:
    count = 200_000
    zeros, ordered = torch.zeros(count, dtype=torch.long), torch.arange(count)
    for numbers in (uniforms(ordered, zeros), uniforms(zeros, ordered), uniforms(ordered, zeros, 1)):
        assert numbers.min() > 0
        assert numbers.max() < 1
        shares = torch.histc(numbers.float(), bins=20, min=0, max=1) / count
        assert shares.tolist() == pytest.approx([0.05] * 20, abs=0.0025)
        assert abs(torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1].item()) < 4 / count**0.5
    pairs = torch.stack([uniforms(ordered, zeros), uniforms(ordered, zeros, 1), uniforms(ordered, zeros + 1)])
    assert torch.corrcoef(pairs).fill_diagonal_(0).abs().max().item() < 4 / count**0.5


def chosen(
    logits: Tensor, seeds: Tensor, positions: Tensor, *, temperature: float | Tensor, top_p: float | Tensor = 1.0
) -> tuple[Tensor, Tensor]:
    """`choose_tokens` with settings of all rows or `[B]`."""
    rows = len(logits)
    temperatures, tops = (torch.as_tensor(each).expand(rows).tolist() for each in (temperature, top_p))
    settings = RowSettings.of(temperatures, tops, [False] * rows, logits.device)
    return choose_tokens(logits, seeds, positions, settings)


@pytest.mark.parametrize(("number", "entry"), [(0.19, 0), (0.21, 2), (0.49, 2), (0.51, 300), (0.999999, 300)])
def test_a_number_picks_the_entry_whose_share_of_the_sum_it_falls_into(number: float, entry: int) -> None:
    weights = padded([2.0, 0.0, 3.0])
    weights[0, 300] = 5.0
    assert draw(weights, torch.tensor([number], dtype=torch.float64)).item() == entry


@pytest.mark.parametrize(("number", "entry"), [(0.25, 1), (0.5, 2), (0.75, 300)])
def test_a_number_on_the_border_of_two_entries_picks_the_later(number: float, entry: int) -> None:
    """The cumulative sums are 1, 2, 3 and, in the other block, 4: the first that exceeds the number's share counts."""
    weights = padded([1.0, 1.0, 1.0])
    weights[0, 300] = 1.0
    assert draw(weights, torch.tensor([number], dtype=torch.float64)).item() == entry


@given(st.lists(st.floats(0, 1e3, width=32), min_size=1, max_size=300), st.floats(0, 1, exclude_min=True))
def test_an_entry_without_weight_is_never_drawn(shares: list[float], number: float) -> None:
    weights = padded([*shares, 1e-3])
    entry = draw(weights, torch.tensor([min(number, 1 - 2**-33)], dtype=torch.float64)).item()
    assert weights[0, int(entry)] > 0


def test_sampling_follows_the_softmax_at_the_temperature() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]])).expand(20000, 3)
    seeds, positions = torch.arange(20000), torch.zeros(20000, dtype=torch.long)
    ids, logps = chosen(logits, seeds, positions, temperature=1.0)
    shares = torch.bincount(ids, minlength=3) / 20000
    assert shares.tolist() == pytest.approx([0.5, 0.3, 0.2], abs=0.012)
    sharp, logps = chosen(logits, seeds, positions, temperature=0.5)
    assert (sharp == 0).double().mean().item() == pytest.approx(0.25 / 0.38, abs=0.012)
    assert logps[sharp == 0][0].item() == pytest.approx(math.log(0.25 / 0.38), abs=1e-5)


def test_sampling_follows_the_softmax_over_many_blocks() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1000, generator=generator) * 2
    count = 40_000
    ids, logps = chosen(
        logits.expand(count, -1), torch.arange(count), torch.zeros(count, dtype=torch.long), temperature=1.0
    )
    probabilities = torch.softmax(logits.double(), -1)
    groups = torch.arange(1000) // 50
    expected = torch.zeros(20, dtype=torch.float64).index_add(0, groups, probabilities)
    shares = torch.bincount(groups[ids], minlength=20) / count
    assert ((shares - expected).abs() < 4.5 * (expected * (1 - expected) / count).sqrt()).all()
    assert torch.allclose(logps.double(), probabilities.log()[ids], atol=1e-5)


def test_every_row_has_its_own_temperature_and_top_p() -> None:
    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]])).expand(9000, 3)
    seeds, positions = torch.arange(9000), torch.zeros(9000, dtype=torch.long)
    temperature = torch.tensor([0.0, 1.0, 1.0]).repeat(3000)
    top_p = torch.tensor([1.0, 1.0, 0.8], dtype=torch.float64).repeat(3000)
    ids, logps = chosen(logits, seeds, positions, temperature=temperature, top_p=top_p)
    assert (ids[0::3] == 0).all()
    assert (torch.bincount(ids[1::3], minlength=3) / 3000).tolist() == pytest.approx([0.6, 0.3, 0.1], abs=0.03)
    assert (torch.bincount(ids[2::3], minlength=3) / 3000).tolist() == pytest.approx([2 / 3, 1 / 3, 0], abs=0.03)
    assert torch.allclose(logps, torch.log(torch.tensor([0.6, 0.3, 0.1]))[ids], atol=1e-6)


def test_greedy_takes_the_best_and_gives_its_probability_at_temperature_one() -> None:
    ids, logps = chosen(torch.log(torch.tensor([[1.0, 3.0]])), torch.tensor([9]), torch.tensor([0]), temperature=0.0)
    assert (ids.item(), logps.item()) == (1, pytest.approx(math.log(0.75)))


def test_a_greedy_row_among_sampled_ones_takes_the_best_at_its_own_temperature() -> None:
    logits = torch.log(torch.tensor([[0.2, 0.5, 0.3]])).expand(200, 3)
    greedy = [row % 2 == 0 for row in range(200)]
    settings = RowSettings.of([0.5] * 200, [1.0] * 200, greedy, logits.device)
    ids, logps = choose_tokens(logits, torch.arange(200), torch.zeros(200, dtype=torch.long), settings)
    assert (ids[0::2] == 1).all()
    assert set(ids[1::2].tolist()) == {0, 1, 2}
    assert logps[0].item() == pytest.approx(math.log(0.25 / 0.38), abs=1e-6)


def test_nothing_is_put_down_where_all_rows_sample_at_temperature_one() -> None:
    settings = RowSettings.of([1.0, 1.0], [1.0, 1.0], [False, False], torch.device("cpu"))
    assert settings == RowSettings(None, None, None, all_best=False)


def test_one_row_at_temperature_one_does_not_take_the_others_there() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]])).expand(2, 3)
    settings = RowSettings.of([1.0, 0.5], [1.0, 1.0], [True, True], torch.device("cpu"))
    _, logps = choose_tokens(logits, torch.arange(2), torch.zeros(2, dtype=torch.long), settings)
    assert logps.tolist() == pytest.approx([math.log(0.5), math.log(0.25 / 0.38)])


def test_what_is_more_probable_comes_first_and_the_first_of_equals() -> None:
    weights = torch.tensor([[0.5, 0.1, 0.3, 0.1]])
    before = [more_probable(weights, torch.tensor([entry]))[0].tolist() for entry in range(4)]
    assert before == [
        [False] * 4,
        [True, False, True, False],
        [True, False, False, False],
        [True, True, True, False],
    ]


@pytest.mark.parametrize(("top_p", "kept"), [(0.4, {0}), (0.6, {0, 2}), (0.85, {0, 1, 2}), (1.0, {0, 1, 2, 3})])
def test_top_p_draws_from_the_smallest_set_that_reaches_the_mass(top_p: float, kept: set[int]) -> None:
    weights = padded([0.5, 0.1, 0.3, 0.1]).expand(20000, -1)
    seeds, positions = torch.arange(20000), torch.zeros(20000, dtype=torch.long)
    ids = draw_top_p(weights, seeds, positions, torch.full((20000,), top_p, dtype=torch.float64))
    shares = torch.bincount(ids, minlength=4) / 20000
    expected = torch.tensor([share if entry in kept else 0.0 for entry, share in enumerate([0.5, 0.1, 0.3, 0.1])])
    assert shares.tolist() == pytest.approx((expected / expected.sum()).tolist(), abs=0.012)


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.25, {0}),
        (0.5, {0}),
        (0.5001, {0, 1}),
        (0.75, {0, 1}),
        (0.7501, {0, 1, 2}),
        (0.875, {0, 1, 2}),
        (0.9, {0, 1, 2, 3}),
    ],
)
def test_the_entry_that_reaches_the_mass_exactly_is_the_last_of_the_set(top_p: float, kept: set[int]) -> None:
    """Shares of powers of two: the sums are 0.5, 0.75, 0.875 and 1 to the bit. transformers keeps as many."""
    shares = [0.5, 0.25, 0.125, 0.125]
    rows = torch.arange(4000)
    tops = torch.full((4000,), top_p, dtype=torch.float64)
    ids = draw_top_p(padded(shares).expand(4000, -1), rows, torch.zeros_like(rows), tops)
    assert set(ids.tolist()) == kept == nucleus(torch.tensor(shares), top_p)
    others = TopPLogitsWarper(top_p)(torch.empty(0), torch.tensor([shares]).log())  # of equals it may keep another
    assert int(others.isfinite().sum()) == len(kept)


def test_a_forced_token_is_taken_whatever_its_id() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.2, 0.7]])).expand(3, 3)
    settings = RowSettings.of([0.0] * 3, [1.0] * 3, [False] * 3, torch.device("cpu"))
    forced = torch.tensor([0, -1, 1])
    ids, logps = choose_tokens(logits, torch.arange(3), torch.zeros(3, dtype=torch.long), settings, forced_B=forced)
    assert ids.tolist() == [0, 2, 1]
    assert logps.tolist() == pytest.approx([math.log(0.1), math.log(0.7), math.log(0.2)])


def test_log_probabilities_are_those_before_top_p() -> None:
    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]]))
    ids, logps = chosen(logits, torch.tensor([0]), torch.tensor([0]), temperature=1.0, top_p=0.5)
    assert (ids.item(), logps.item()) == (0, pytest.approx(math.log(0.6)))


@hypothesis(deadline=None)
@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.floats(0.05, 1.0))
def test_a_chosen_token_is_always_inside_the_nucleus(seed: int, position: int, top_p: float) -> None:
    logits = torch.linspace(-3, 3, 40)[None]
    ids, _ = chosen(logits, torch.tensor([seed]), torch.tensor([position]), temperature=1.0, top_p=top_p)
    assert ids.item() in nucleus(torch.exp(logits[0]), top_p + 1e-6)


def test_rows_are_chosen_as_they_would_be_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(32, 700, generator=generator) * 3
    seeds, positions = torch.arange(32) * 977, torch.arange(32)
    together = chosen(logits, seeds, positions, temperature=0.8, top_p=0.9)
    for row in range(32):
        one = slice(row, row + 1)
        alone = chosen(logits[one], seeds[one], positions[one], temperature=0.8, top_p=0.9)
        assert (alone[0].item(), alone[1].item()) == (together[0][row].item(), together[1][row].item())


def test_an_improbable_vocabulary_does_not_outweigh_the_one_token_that_is_sure() -> None:
    logits = torch.full((1, 50_000), -20.0)
    logits[0, 5] = 20.0
    assert chosen(logits, torch.tensor([910686]), torch.tensor([0]), temperature=1.0)[0].item() == 5


@pytest.mark.gpu
def test_the_gpu_draws_the_same_tokens() -> None:
    generator = torch.Generator().manual_seed(2)
    logits, seeds = torch.randn(64, 5000, generator=generator) * 3, torch.arange(64)
    for top_p in (1.0, 0.9):
        here, _ = chosen(logits, seeds, seeds, temperature=1.0, top_p=top_p)
        there, _ = chosen(logits.cuda(), seeds.cuda(), seeds.cuda(), temperature=1.0, top_p=top_p)
        assert (here == there.cpu()).sum() >= 63, "a border may move across one number"
