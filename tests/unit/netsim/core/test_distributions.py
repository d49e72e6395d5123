"""What a link draws has the distribution that its profile states; each rule fails with its planted error."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from netsim.core.conditions import Bernoulli, Conditions, DelaySpec, GilbertElliott, LossSpec, Truncation
from netsim.core.link import Direction, Drop, LinkModel, Release, Verdict
from netsim.core.schedule import ConditionSchedule
from netsim.core.stream import StreamSender
from netsim.profile import profiles
from netsim.profile.scenario import Scenario
from scipy import stats

FOUR_G = DelaySpec(21.0, 19.0)
DRAWS = 100_000


def link(**conditions: object) -> LinkModel:
    return LinkModel(ConditionSchedule([(0.0, Conditions(**conditions))]), 1, Direction.UP)  # type: ignore[arg-type]


def fit(values: list[float], spec: DelaySpec) -> tuple[float, float]:
    """Kolmogorov and Smirnov's distance, and the chance of one as large."""
    result = stats.kstest(values, np.vectorize(spec.cdf, otypes=[float]))
    return float(result.statistic), float(result.pvalue)


@pytest.mark.parametrize(
    "spec",
    [
        replace(FOUR_G, correlation_ms=0.0),
        FOUR_G,
        replace(FOUR_G, truncation=Truncation.PRESERVE_MEAN, correlation_ms=0.0),
        DelaySpec(10.0, 10.0, correlation_ms=0.0),
    ],
)
def test_delays(spec: DelaySpec) -> None:
    def drawn(of: DelaySpec) -> list[float]:
        # Correlated draws are taken 20 time constants apart, where exp(-20) is left of the correlation.
        verdicts = (model.admit(100, float(i)) for model in [link(delay=of)] for i in range(DRAWS))
        return [verdict.delay_s * 1e3 for verdict in verdicts if isinstance(verdict, Release)]

    assert fit(drawn(spec), spec)[1] > 0.01
    assert fit(drawn(replace(spec, deviation_ms=spec.deviation_ms * 1.03)), spec)[1] < 0.01


def test_delays_are_a_truncated_normal_distribution() -> None:
    reference = stats.truncnorm(-21 / 19, float("inf"), 21, 19)
    assert FOUR_G.effective() == pytest.approx((reference.mean(), reference.std()))
    for x in (0.1, 5.0, 21.0, 60.0, 100.0):
        assert FOUR_G.cdf(x) == pytest.approx(float(reference.cdf(x)))


@pytest.mark.parametrize(("spacing_s", "is_distorted"), [(0.005, True), (0.5, False)])
def test_independent_jitter_is_distorted_where_packets_keep_their_order(spacing_s: float, is_distorted: bool) -> None:
    spec = replace(FOUR_G, correlation_ms=0.0)
    model = link(delay=spec)
    verdicts = [(i * spacing_s, model.admit(100, i * spacing_s)) for i in range(300)]
    delays = [(verdict.t - sent) * 1e3 for sent, verdict in verdicts if isinstance(verdict, Release)]
    assert (fit(delays, spec)[0] >= 1.63 / 300**0.5) is is_distorted  # the 1 % point of Kolmogorov's distribution


def losses(spec: LossSpec, n: int) -> list[bool]:
    model = link(loss=spec)
    return [isinstance(model.admit(100, i * 1e-3), Drop) for i in range(n)]


@pytest.mark.parametrize(("p", "n"), [(0.001, 200_000), (0.02, 50_000)])
def test_losses_are_as_many(p: float, n: int) -> None:
    low, high = stats.binom.interval(0.99, n, p)
    assert low <= sum(losses(Bernoulli(p), n)) <= high
    assert sum(losses(Bernoulli(1.5 * p), n)) > high


@pytest.mark.parametrize(
    ("spec", "is_independent"), [(Bernoulli(0.05), True), (GilbertElliott(0.2 * 0.05 / 0.95, 0.2), False)]
)
def test_losses_are_independent_or_come_in_bursts(spec: LossSpec, is_independent: bool) -> None:
    lost = losses(spec, DRAWS)
    ones = sum(lost)
    runs = 1 + sum(a != b for a, b in pairwise(lost))
    mean = 1.0 + 2.0 * ones * (DRAWS - ones) / DRAWS  # Wald and Wolfowitz
    z = (runs - mean) / ((mean - 1.0) * (mean - 2.0) / (DRAWS - 1)) ** 0.5
    assert bool(abs(z) < stats.norm.ppf(0.995)) is is_independent


def test_the_log_of_a_seed_is_the_same_everywhere() -> None:
    digest = hashlib.sha256()

    def observe(direction: Direction, t: float, nbytes: int, verdict: Verdict) -> None:
        digest.update(f"{direction} {t!r} {nbytes} {verdict!r}\n".encode())

    links = Scenario(profiles.load("lte-train"), 1).models(observe)
    sender = StreamSender(links[Direction.UP], links[Direction.DOWN], 0.0, 0.07)
    for step in range(6_000):
        t = step * 0.01
        links[Direction.DOWN].admit(100 + step % 1400, t)
        sender.offer(500, t)
        digest.update(f"{sender.deliver(t)!r}\n".encode())
    # Pinned: a change of this digest means that old seeds no longer give the runs they gave.
    assert digest.hexdigest() == "4a23f421fea9dfbd7657aa1c81dd3dedafb97df2b6ac1b69798c0edf034c468e"
