"""The statistics of the checks: Kolmogorov-Smirnov and the binomial interval from scipy, and the runs test. Pure.

scipy comes with the extra netsim-validate; it and numpy are imported when a check needs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import Any, NamedTuple

from netsim.errors import NetsimError

KS_D_300 = 0.094  # 1.63 / sqrt(300): the 1 % point of Kolmogorov's distribution at n = 300
RUNS_LIMIT = NormalDist().inv_cdf(0.995)  # two-sided 99 %


class DistributionFit(NamedTuple):
    """How well a sample fits a distribution: the largest distance, and the probability of one at least as large."""

    distance: float
    p_value: float


def scipy_stats() -> Any:
    """scipy.stats; raises NetsimError if scipy is not installed."""
    try:
        from scipy import stats
    except ImportError:
        raise NetsimError(
            "`netsim validate` needs scipy, which is not installed.",
            hint="Install it: pip install 'moa[netsim-validate]'.",
        ) from None
    return stats


def kolmogorov_smirnov(values: Sequence[float], cdf: Callable[[float], float]) -> DistributionFit:
    """The fit of a sample to the distribution of `cdf`."""
    stats = scipy_stats()
    import numpy as np

    result = stats.kstest(values, np.vectorize(cdf, otypes=[float]))
    return DistributionFit(float(result.statistic), float(result.pvalue))


def binomial_interval(n: int, p: float, confidence: float = 0.99) -> tuple[int, int]:
    """Least and greatest count inside the central interval of the binomial distribution."""
    low, high = scipy_stats().binom.interval(confidence, n, p)
    return int(low), int(high)


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
