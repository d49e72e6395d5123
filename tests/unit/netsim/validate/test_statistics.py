"""The statistics, against scipy's."""

from __future__ import annotations

from random import Random

import pytest
from netsim.core.delay import DelaySpec
from netsim.validate.statistics import binomial_interval, ks_distance, ks_p_value, quantile, runs_z
from scipy import stats


@pytest.mark.parametrize("n", [50, 300, 5000])
def test_kolmogorov_smirnov(n: int) -> None:
    random = Random(n)
    values = [random.gauss(0.05, 1.0) for _ in range(n)]
    reference = stats.kstest(values, "norm")
    distance = ks_distance(values, lambda x: float(stats.norm.cdf(x)))
    assert distance == pytest.approx(reference.statistic)
    assert ks_p_value(distance, n) == pytest.approx(reference.pvalue, abs=0.01)


def test_our_distribution_is_scipys_truncated_normal() -> None:
    spec, reference = DelaySpec(21.0, 19.0), stats.truncnorm(-21 / 19, float("inf"), 21, 19)
    assert spec.effective() == pytest.approx((reference.mean(), reference.std()))
    for x in (0.1, 5.0, 21.0, 60.0, 100.0):
        assert spec.cdf(x) == pytest.approx(float(reference.cdf(x)))


@pytest.mark.parametrize(("n", "p"), [(1000, 0.5), (200_000, 0.001), (50_000, 0.02), (20, 0.1)])
def test_binomial_interval(n: int, p: float) -> None:
    assert binomial_interval(n, p) == tuple(map(int, stats.binom.interval(0.99, n, p)))


def test_runs() -> None:
    assert runs_z([True, False] * 200) > 10
    assert runs_z([True] * 200 + [False] * 200) < -10
    random = Random(1)
    assert abs(runs_z([random.random() < 0.3 for _ in range(5000)])) < 2.5
    with pytest.raises(ValueError, match="both outcomes"):
        runs_z([True, True])


def test_quantile() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([5.0], 0.95) == 5.0
