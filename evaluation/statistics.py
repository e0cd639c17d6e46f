"""Uncertainty of a mean and of a paired difference: bootstrap intervals, paired tests, Holm's correction.

The unit is the question. NaN means that a measure does not apply to a question, which is then left out. Suffixes: K
seeds, N questions. Several training seeds are averaged per question first; intervals and tests then generalise to other
questions under these seeds, and `seeds_interval` to other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from common.seeds import stable_hash

Floats = NDArray[np.float64]

BOUNDS = ((1 - 0.95) / 2, (1 + 0.95) / 2)  # of every interval
_PICKS_AT_ONCE = 2**22  # bounds the memory of a resampling to some 64 MB


@dataclass(frozen=True, slots=True)
class PairedTest:
    """A mean difference a − b over `n` questions, its interval [low, high], and the two-sided p of no difference."""

    difference: float
    low: float
    high: float
    p: float
    n: int


def bootstrap_interval(values: ArrayLike, *, seed: int, resamples: int = 2000) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over questions (Efron & Tibshirani 1993, §13.3).

    The 2.5 % and 97.5 % quantiles of `resamples` means, each over N questions drawn with replacement from `values` [N].
    NaN for fewer than two questions; a point where all values are equal, however few they are.
    """
    used = _numbers(values)
    if len(used) < 2:
        return float("nan"), float("nan")
    return _quantiles(_resampled_means(used, seed, resamples))


def bootstrap_ratio(
    numerators: ArrayLike, denominators: ArrayLike, *, seed: int, resamples: int = 2000
) -> tuple[float, float]:
    """Percentile bootstrap interval over questions of Σ numerators / Σ denominators, two arrays [N].

    Draws without any denominator are left out. NaN for fewer than two questions that have a denominator.
    """
    top, bottom = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    if np.count_nonzero(bottom) < 2:
        return float("nan"), float("nan")
    # The same seed and length: both are means over the same draws.
    tops, bottoms = _resampled_means(top, seed, resamples), _resampled_means(bottom, seed, resamples)
    return _quantiles(tops[bottoms > 0] / bottoms[bottoms > 0])


def paired_bootstrap(a: ArrayLike, b: ArrayLike, *, seed: int, resamples: int = 2000) -> PairedTest:
    """Bootstrap test of mean(a − b) = 0 for `a`, `b` [N] on the same questions in the same order.

    With d = mean(a − b) and d*_r its resampled values: p = (1 + #{r: |d*_r − d| ≥ |d|}) / (resamples + 1), the
    bootstrap shifted to the null (Efron & Tibshirani 1993, §16.4), so p is never below 1 / (resamples + 1).

    Raises:
        ValueError: `a` and `b` differ in length.
    """
    used = _differences(a, b)
    if len(used) < 2:
        return _untested(used)
    difference = float(used.mean())
    means = _resampled_means(used, seed, resamples)
    # The margin keeps ties ties: sums of the same thirds in another order differ in the last bit.
    extreme = np.abs(means - difference) >= abs(difference) - 1e-12
    return PairedTest(difference, *_quantiles(means), float((1 + extreme.sum()) / (resamples + 1)), len(used))


def paired_t_test(a: ArrayLike, b: ArrayLike) -> PairedTest:
    """Student's paired t-test of mean(a − b) = 0, the test ProRAG reports at p < 0.05.

    t = d / (s / √N) with d and s the mean and the sample standard deviation of a − b, N − 1 degrees of freedom. Where
    all differences are the same (to rounding), there is no spread to test against, and a few seeds may well tie: p and
    the bounds are NaN, or p is 1 and the bounds are 0 if nothing differs.

    Raises:
        ValueError: `a` and `b` differ in length.
    """
    used = _differences(a, b)
    if len(used) < 2:
        return _untested(used)
    difference = float(used.mean())
    if not used.any():
        return PairedTest(0.0, 0.0, 0.0, 1.0, len(used))
    if np.ptp(used) < 1e-9 * abs(used).max():
        return PairedTest(difference, math.nan, math.nan, math.nan, len(used))
    error = float(used.std(ddof=1)) / math.sqrt(len(used))
    half = float(stats.t.ppf(BOUNDS[1], len(used) - 1)) * error
    p = 2 * float(stats.t.sf(abs(difference) / error, len(used) - 1))
    return PairedTest(difference, difference - half, difference + half, p, len(used))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (1979), in the order given; NaN stays NaN and does not count as a comparison.

    With p_(1) ≤ … ≤ p_(m): adjusted p_(i) = min(1, max_{j ≤ i} (m − j + 1) p_(j)).
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")[: int(np.isfinite(p).sum())]
    factors = np.arange(len(order), 0, -1)
    adjusted = np.full(len(p), np.nan)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * p[order]))
    return adjusted.tolist()


def average_seeds(values_KN: ArrayLike) -> Floats:
    """Mean over seeds of each question, [K, N] -> [N]; over the seeds that have it, NaN where none has."""
    values = np.asarray(values_KN, dtype=float)
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0.0).sum(0) / known.sum(0)


def across_seeds(values: ArrayLike) -> tuple[float, float]:
    """Mean and sample standard deviation of the K seeds' values [K]; NaN without any, the latter also for one."""
    used = _numbers(values)
    mean = float(used.mean()) if len(used) else float("nan")
    return mean, float(used.std(ddof=1)) if len(used) > 1 else float("nan")


def seeds_interval(values: ArrayLike) -> tuple[float, float]:
    """Student's interval of the mean of the K seeds' values [K]; NaN for one seed, and where all are the same."""
    used = _numbers(values)
    test = paired_t_test(used, np.zeros(len(used)))
    return test.low, test.high


def _numbers(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=float)
    return array[~np.isnan(array)]


def _differences(a: ArrayLike, b: ArrayLike) -> Floats:
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if first.shape != second.shape:
        raise ValueError(f"a paired test needs the same questions twice, got {first.shape} and {second.shape}")
    return _numbers(first - second)


def _untested(used: Floats) -> PairedTest:
    nan = float("nan")
    return PairedTest(float(used[0]) if len(used) else nan, nan, nan, nan, len(used))


def _resampled_means(values: Floats, seed: int, resamples: int) -> Floats:
    """Means [resamples] of len(values) draws each."""
    generator = np.random.default_rng(stable_hash(seed, "bootstrap"))
    rows = max(1, _PICKS_AT_ONCE // len(values))
    blocks = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    return np.concatenate([values[generator.integers(len(values), size=(n, len(values)))].mean(1) for n in blocks])


def _quantiles(means: Floats) -> tuple[float, float]:
    low, high = np.quantile(means, BOUNDS)
    return float(low), float(high)
