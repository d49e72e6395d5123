"""The statistics of the checks: Kolmogorov-Smirnov, the binomial interval, the runs test. Pure, and without scipy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import NormalDist

KS_D_300 = 0.094  # 1.63 / sqrt(300): the 1 % point of Kolmogorov's distribution at n = 300


def ks_distance(values: Sequence[float], cdf: Callable[[float], float]) -> float:
    """Largest distance between the sample's distribution and `cdf`."""
    ordered = sorted(values)
    n = len(ordered)
    distance = 0.0
    for i, value in enumerate(ordered):
        at = cdf(value)
        distance = max(distance, at - i / n, (i + 1) / n - at)
    return distance


def ks_p_value(distance: float, n: int) -> float:
    """Probability of at least this distance if the sample is from the distribution (Stephens' approximation)."""
    root = math.sqrt(n)
    x = (root + 0.12 + 0.11 / root) * distance
    if x < 0.2:
        return 1.0  # the series converges slowly there, and the value is 1 to ten digits
    series = math.fsum((1.0 if k % 2 else -1.0) * math.exp(-2.0 * (k * x) ** 2) for k in range(1, 101))
    return max(0.0, min(1.0, 2.0 * series))


def binomial_interval(n: int, p: float, confidence: float = 0.99) -> tuple[int, int]:
    """Least and greatest count inside the central interval of the binomial distribution."""
    tail = (1.0 - confidence) / 2.0
    reach = 12.0 * math.sqrt(n * p * (1.0 - p)) + 12.0  # beyond it lies less than any tail in use
    first, last = max(0, int(n * p - reach)), min(n, int(n * p + reach))
    total, low, high = 0.0, first, last
    found_low = False
    for k in range(first, last + 1):
        log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        total += math.exp(log + k * math.log(p) + (n - k) * math.log1p(-p))
        if not found_low and total > tail:
            low, found_low = k, True
        if total >= 1.0 - tail:
            high = k
            break
    return low, high


def runs_z(outcomes: Sequence[bool]) -> float:
    """Wald-Wolfowitz: standard score of the number of runs; negative where like follows like too often."""
    ones = sum(outcomes)
    zeros = len(outcomes) - ones
    if not ones or not zeros:
        raise ValueError("the runs test needs both outcomes")
    n = ones + zeros
    runs = 1 + sum(a != b for a, b in pairwise(outcomes))
    mean = 1.0 + 2.0 * ones * zeros / n
    variance = (mean - 1.0) * (mean - 2.0) / (n - 1)
    return (runs - mean) / math.sqrt(variance)


RUNS_LIMIT = NormalDist().inv_cdf(0.995)  # two-sided 99 %


def quantile(values: Sequence[float], share: float) -> float:
    """Quantile by linear interpolation."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
