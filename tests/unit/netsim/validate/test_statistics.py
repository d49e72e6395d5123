"""The statistics on known samples, and what is said without scipy."""

from __future__ import annotations

import sys
from random import Random

import pytest
from inline_snapshot import snapshot
from netsim.core.delay import DelaySpec
from netsim.errors import NetsimError
from netsim.validate.statistics import binomial_interval, kolmogorov_smirnov, runs_z, scipy_stats
from scipy import stats

from tests.support.messages import raises


@pytest.mark.parametrize("n", [50, 300, 5000])
def test_kolmogorov_smirnov(n: int) -> None:
    random = Random(n)
    values = [random.gauss(0.05, 1.0) for _ in range(n)]
    reference = stats.kstest(values, "norm")
    fit = kolmogorov_smirnov(values, lambda x: float(stats.norm.cdf(x)))
    assert fit == pytest.approx((reference.statistic, reference.pvalue))


def test_our_distribution_is_scipys_truncated_normal() -> None:
    spec, reference = DelaySpec(21.0, 19.0), stats.truncnorm(-21 / 19, float("inf"), 21, 19)
    assert spec.effective() == pytest.approx((reference.mean(), reference.std()))
    for x in (0.1, 5.0, 21.0, 60.0, 100.0):
        assert spec.cdf(x) == pytest.approx(float(reference.cdf(x)))


def test_binomial_interval() -> None:
    assert binomial_interval(200_000, 0.001) == (165, 237)
    assert binomial_interval(50_000, 0.02) == (920, 1082)


def test_without_scipy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with raises(NetsimError, snapshot("`netsim validate` needs scipy, which is not installed.")) as caught:
        scipy_stats()
    assert caught.value.hint == "Install it: pip install 'moa[netsim-validate]'."


def test_runs() -> None:
    assert runs_z([True, False] * 200) > 10
    assert runs_z([True] * 200 + [False] * 200) < -10
    random = Random(1)
    assert abs(runs_z([random.random() < 0.3 for _ in range(5000)])) < 2.5
    with raises(ValueError, snapshot("the runs test needs both outcomes")):
        runs_z([True, True])
