"""Delays: effective moments against the published ones, the inverse distribution, correlation in time."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netsim.core.conditions import DelayProcess, DelaySpec, Truncation

FOUR_G = DelaySpec(21.0, 19.0)


@pytest.mark.parametrize(
    ("spec", "mean", "deviation"),
    [
        (FOUR_G, 25.75, 15.4),
        (DelaySpec(21.0, 19.0, Truncation.CLAMP), 22.3, 16.8),
        (DelaySpec(10.0, 10.0), 12.9, 7.9),
        (DelaySpec(10.0, 10.0, Truncation.CLAMP), 10.8, 8.7),
        (DelaySpec(21.0, 19.0, scale=0.5), 25.75 / 2, 15.4 / 2),
        (DelaySpec(7.0), 7.0, 0.0),
    ],
)
def test_effective_moments_are_the_published_ones(spec: DelaySpec, mean: float, deviation: float) -> None:
    assert spec.effective() == pytest.approx((mean, deviation), abs=0.06)


@pytest.mark.parametrize(
    "spec", [DelaySpec(21.0, 19.0, Truncation.PRESERVE_MEAN), DelaySpec(10.0, 10.0, Truncation.PRESERVE_MEAN)]
)
def test_preserve_mean_keeps_the_mean(spec: DelaySpec) -> None:
    assert spec.effective().mean_ms == pytest.approx(spec.mean_ms, abs=1e-6)


@pytest.mark.parametrize("truncation", list(Truncation))
def test_draws_have_the_effective_moments(truncation: Truncation) -> None:
    spec = DelaySpec(21.0, 19.0, truncation, correlation_ms=0.0)
    process = DelayProcess(Random(5))
    draws = [process.draw_s(spec, 0.0) * 1e3 for _ in range(40_000)]
    expected = spec.effective()
    assert fmean(draws) == pytest.approx(expected.mean_ms, abs=0.35)
    assert pstdev(draws) == pytest.approx(expected.deviation_ms, abs=0.35)
    assert min(draws) >= 0.0


@given(
    mean=st.floats(0.0, 500.0),
    deviation=st.floats(0.01, 200.0),
    truncation=st.sampled_from(Truncation),
    x=st.floats(-6.0, 6.0),
    step=st.floats(0.0, 3.0),
)
def test_quantile_rises_and_inverts_the_distribution(
    mean: float, deviation: float, truncation: Truncation, x: float, step: float
) -> None:
    spec = DelaySpec(mean, deviation, truncation)
    low, high = spec.quantile_s(x), spec.quantile_s(x + step)
    assert 0.0 <= low <= high + 1e-12
    if low > 1e-9:
        assert spec.cdf(low * 1e3) == pytest.approx(0.5 * math.erfc(-x / math.sqrt(2.0)), abs=1e-6)


@pytest.mark.parametrize(("gap_ms", "expected"), [(0.0, 1.0), (50.0, math.exp(-1.0)), (150.0, math.exp(-3.0))])
def test_correlation_falls_with_the_gap(gap_ms: float, expected: float) -> None:
    # Far above zero truncation does nothing, so delays correlate as the process does.
    spec = DelaySpec(1000.0, 10.0)
    process = DelayProcess(Random(1))
    pairs = []
    for i in range(8_000):
        t = i * 10.0
        pairs.append((process.draw_s(spec, t), process.draw_s(spec, t + gap_ms / 1e3)))
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    mx, my = fmean(xs), fmean(ys)
    covariance = fmean((x - mx) * (y - my) for x, y in pairs)
    assert covariance / (pstdev(xs) * pstdev(ys)) == pytest.approx(expected, abs=0.04)


def test_a_constant_delay_draws_nothing() -> None:
    random = Random(3)
    process = DelayProcess(random)
    state = random.getstate()
    assert process.draw_s(DelaySpec(7.0), 1.0) == 0.007
    assert random.getstate() == state


def test_extreme_draws_stay_finite() -> None:
    spec = DelaySpec(0.0, 1.0)
    assert 0.0 <= spec.quantile_s(-40.0) < 1e-6
    assert math.isfinite(spec.quantile_s(40.0))
